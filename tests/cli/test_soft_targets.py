"""Mixup and cutmix as a transform of batches, label smoothing, class weights."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from devrun.metrics import accuracy, topk_accuracy
from tests.cli.conftest import logged, one_error
from tests.support.configs import DATA, HF_VIT, RESNET
from tests.support.packages import vision

V2 = "torchvision.transforms.v2"
MIXUP = {"type": f"{V2}.MixUp", "alpha": 0.8, "num_classes": 4}
EITHER = {
    "type": f"{V2}.RandomChoice",
    "transforms": [MIXUP, {"type": f"{V2}.CutMix", "num_classes": 4}],
}
SMOOTH = {
    "type": "CrossEntropyLoss",
    "label_smoothing": 0.2,
    "weight": [1.0, 2.0, 0.5, 4.0],
}


def data(transform=None, **changes):
    return {
        **DATA,
        **({} if transform is None else {"batch_transform": transform}),
        **changes,
    }


@pytest.fixture
def run(weights):
    return partial(weights, model=RESNET)


def same(one, two):
    return all(torch.equal(one[name], two[name]) for name in one)


def losses(work_dir, mode="train"):
    return [line["loss"] for line in logged(work_dir, mode)]


@pytest.mark.parametrize("transform", [MIXUP, EITHER, [MIXUP, EITHER["transforms"][1]]])
def test_neither_workers_nor_a_resume_change_what_is_mixed(run, train, transform):
    vision("torchvision")
    whole = run("whole", data=data(transform))
    assert not same(whole, run("plain", data=data()))
    assert same(whole, run("workers", data=data(transform, workers_per_gpu=2)))
    iters = {
        "runner": {"type": "IterBasedRunner", "max_iters": 3},
        "evaluation": {"metric": "accuracy", "interval": 3},
    }
    run("parts", data=data(transform), **iters)  # 3 of the 4 updates of an epoch
    iters["runner"] = {"type": "IterBasedRunner", "max_iters": 8}
    more = ("--resume-from", "auto")
    parts = run("parts", *more, data=data(transform), **iters)
    assert same(parts, run("once", data=data(transform), **iters))
    words = "--work-dir parts --cfg-options data.batch_transform=None"
    status, _, err = train("parts.yaml", *more, *words.split())
    assert status == 3
    assert "batch_transform" in err


@pytest.mark.parametrize("transform", [None, MIXUP])
@pytest.mark.parametrize("loss", [{}, {"label_smoothing": 0.2}])
def test_an_ipu_has_the_losses_of_the_cpu(run, loss, transform):
    if transform is not None:
        vision("torchvision")
    every = {"interval": 1, "hooks": [{"type": "TextLoggerHook"}]}
    loss = {"type": "CrossEntropyLoss", **loss}
    changes = {"data": data(transform), "loss": loss, "log_config": every}
    run("cpu", **changes)
    run("ipu", "--device", "ipu", "--emulate", **changes)
    for mode in ("train", "val"):
        torch.testing.assert_close(
            torch.tensor(losses("ipu", mode)),
            torch.tensor(losses("cpu", mode)),
            rtol=1e-4,
            atol=1e-4,
        )


def test_an_ipu_refuses_class_weights_by_name(config, train):
    path = config(model=RESNET, data=data(), loss=SMOOTH)
    status, _, err = train(path, "--device", "ipu", "--emulate")
    assert status == 2
    assert "the argument weight is not supported on the IPU" in err.splitlines()[-1]


def test_smoothing_and_weights_are_torchs(run):
    from devrun.data import SyntheticImages
    from devrun.models import ResNet

    still = {"type": "SGD", "lr": 1e-30}
    saved = run("out", loss=SMOOTH, data=data(), optimizer=still)
    model = ResNet(**{k: v for k, v in RESNET.items() if k != "type"}).eval()
    model.load_state_dict(saved)
    samples = SyntheticImages(16, (3, 8, 8), 4, offset=32)
    x = torch.stack([samples[i][0] for i in range(16)])
    y = torch.stack([torch.as_tensor(samples[i][1]) for i in range(16)])
    arguments = {**SMOOTH, "weight": torch.tensor(SMOOTH["weight"])}
    arguments.pop("type")
    expected = torch.nn.functional.cross_entropy(model(x), y, **arguments)
    assert losses("out", "val")[-1] == pytest.approx(expected.item(), abs=1e-4)


def test_a_model_with_a_loss_of_its_own_needs_another_for_mixed_labels(
    config, train, run
):
    vision("torchvision")
    pytest.importorskip("transformers")
    path = config(model=HF_VIT, data=data(MIXUP), loss=None)
    status, _, err = train(path)
    assert status == 2
    line = err.splitlines()[-1]
    assert "the own loss of ViTForImageClassification may read otherwise" in line
    assert "small.yaml:" in line
    run("given", model=HF_VIT, data=data(MIXUP), loss=SMOOTH)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": data(3)}, "batch_transform: takes a dict or a list, not 3"),
        ({"data": data({"type": "MixUp"})}, "'MixUp' is not in the transform"),
        ({"data": data({**MIXUP, "alpa": 1})}, "alpa"),
        ({"data": data({"type": f"{V2}.MixUp"})}, "num_classes must be passed"),
        ({"data": data(MIXUP), "loss": {"type": "NLLLoss"}}, "NLLLoss takes class num"),
        ({"loss": {**SMOOTH, "weight": [1.0]}}, "has 1 numbers, and the model 4"),
        ({"loss": {**SMOOTH, "weight": ["a"]}}, "takes a list of numbers"),
        ({"loss": {**SMOOTH, "label_smoothing": 2}}, "from 0 to 1, got 2"),
    ],
)
def test_bad_values_are_one_line(config, train, changes, said):
    if V2 in str(changes):
        vision("torchvision")
    changes = {"model": RESNET, "data": data(), **changes}
    assert said in one_error(train(config(**changes)), 2, 4)


def test_without_torchvision_it_says_what_to_install(config):
    path = config(model=RESNET, data=data(MIXUP))
    program = (
        "import sys; sys.modules['torchvision'] = None\n"
        "from devrun.cli.main import main; sys.exit(main(['train', sys.argv[1]]))"
    )
    words = [sys.executable, "-c", program, path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert "torchvision" in line
    assert "pip install torchvision" in line


def test_accuracy_takes_the_likeliest_of_soft_targets():
    scores = torch.tensor([[0.1, 2.0, 0.0], [3.0, 0.0, 1.0]])
    soft = torch.tensor([[0.2, 0.7, 0.1], [0.1, 0.3, 0.6]])
    assert accuracy(scores, soft) == accuracy(scores, soft.argmax(1)) == (0.5, 2)
    assert topk_accuracy(scores, soft, k=2)[0] == 1.0


SOFT = """
import torch
from devrun.registry import TRANSFORMS


@TRANSFORMS.register_module()
class Halved:
    def __call__(self, images, labels):
        return images, torch.nn.functional.one_hot(labels, 4) / 2
"""


@pytest.mark.parametrize("device", [(), ("--device", "ipu", "--emulate")])
def test_an_evaluation_has_a_loss_of_its_own(config, train, device):
    Path("soft.py").write_text(SOFT)
    changes = {"model": RESNET, "data": data({"type": "Halved"})}
    changes["loss"] = {"type": "BCEWithLogitsLoss"}
    words = ("--import", "soft", "--work-dir", "out", *device)
    assert train(config(**changes), *words)[0] != 0  # labels are no soft targets
    own = config(**changes, val_loss={"type": "CrossEntropyLoss"})
    status, _, err = train(own, *words, "--overwrite")
    assert status == 0, err
    assert losses("out")[-1] < 1.0 < losses("out", "val")[-1]  # ln 2 beside ln 4


def test_the_loss_of_an_evaluation_is_beside_another(config, train):
    path = config(loss=None, val_loss={"type": "CrossEntropyLoss"})
    line = "val_loss is beside a loss, and there is none: give loss too"
    assert line in train(path)[2]
