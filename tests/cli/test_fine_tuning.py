import copy
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from devrun.models import GPT, ResNet, VisionTransformer
from devrun.models.recompute import checkpoint_blocks
from tests.cli.conftest import logged, newest, one_error
from tests.support import configs
from tests.support.configs import DATA, HF_VIT, RESNET
from tests.support.packages import vision

VIT = {**configs.VIT, "depth": 3, "dropout": 0.2}
DEVICES = [["cpu"], ["ipu", "--emulate"]]


@pytest.fixture
def run(weights):
    """`run(work_dir, *words, **config)` trains; the saved weights."""
    return partial(weights, data=DATA)


def losses(work_dir):
    return [line["loss"] for line in logged(work_dir)]


@pytest.mark.parametrize("device", DEVICES)
def test_frozen_weights_and_statistics_stay(run, device):
    words = ("--device", *device)
    start = run("start", model=RESNET)  # frozen weights are those that are loaded
    load = ("--load-from", newest("start"), *words)
    decay = {"type": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    patterns = ["conv1", "bn1", "layer1.*.conv1.weight", "re:^layer2.*bn2"]
    tuned = run("tuned", *load, model=RESNET, freeze=patterns, optimizer=decay)
    frozen = re.compile(r"(conv1|bn1)\.|layer1\.0\.conv1\.weight|layer2\.0\.bn2")
    kept = {name for name in start if frozen.match(name)}
    assert {"bn1.running_mean", "layer2.0.bn2.num_batches_tracked"} <= kept
    same = {name for name in start if torch.equal(start[name], tuned[name])}
    assert same == kept
    free = run("free", *load, model=RESNET, optimizer=decay)
    assert not any(torch.equal(start[name], free[name]) for name in start)


def test_a_frozen_run_resumes_to_the_same_bits(run, train):
    one = {"type": "EpochBasedRunner", "max_epochs": 1}
    whole = run("whole", model=RESNET, freeze=["layer1"])
    run("parts", model=RESNET, freeze=["layer1"], runner=one)
    more = ("--resume-from", "auto")
    parts = run("parts", *more, model=RESNET, freeze=["layer1"])
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    status, _, err = train(
        "parts.yaml", "--work-dir", "parts", *more, "--cfg-options", "freeze=[layer2]"
    )
    assert status == 3
    assert "freeze" in err


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "freeze",
            ["layer3"],
            "'layer3', which matches nothing; did you mean 'layer2'",
        ),
        ("freeze", ["*"], "leaves no parameter of ResNet to train"),
        ("freeze", ["re:(a"], "freeze: has a pattern that cannot be used"),
        ("freeze", [1], "takes a list of patterns"),
        ("gradient_checkpointing", ["layr1"], "did you mean 'layer1'?"),
        ("gradient_checkpointing", 2, "gradient_checkpointing: takes true or false"),
    ],
)
def test_bad_values_are_one_line(config, train, key, value, said):
    line = one_error(train(config(model=RESNET, data=DATA, **{key: value})), 2)
    assert said in line, line
    assert "small.yaml:" in line


def test_what_has_no_blocks_is_refused(config, train):
    status, _, err = train(config(gradient_checkpointing=True))
    assert status == 2, err
    assert "finds no numbered blocks" in err.splitlines()[-1]


@pytest.mark.parametrize("model", [VIT, RESNET])
def test_checkpointing_changes_no_bit(run, model):
    which = [True] if model is VIT else [True, ["layer1", "layer2.0"]]
    plain = run("plain", model=model)
    for number, value in enumerate(which):
        same = run(f"again{number}", model=model, gradient_checkpointing=value)
        assert losses(f"again{number}") == losses("plain")
        assert all(torch.equal(plain[name], same[name]) for name in plain)


def saved_bytes(model, *batch):
    """Of the tensors that the backward pass of `model` keeps."""
    seen = {}

    def pack(tensor):
        seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(*batch)
    own = {p.data_ptr() for p in model.parameters()}
    return sum(n for place, n in seen.items() if place not in own), output


@pytest.mark.parametrize("kind", ["vit", "resnet", "gpt"])
def test_checkpointing_keeps_less(kind):
    make, batch = {
        "vit": (
            lambda: VisionTransformer(16, 4, 32, 6, 4, num_classes=4),
            torch.randn(4, 3, 16, 16),
        ),
        "resnet": (lambda: ResNet(18, 4, stem="cifar"), torch.randn(2, 3, 16, 16)),
        "gpt": (
            lambda: GPT(vocab_size=32, block_size=16, n_layer=6, n_head=4, n_embd=32),
            torch.zeros(4, 16, dtype=torch.long),
        ),
    }[kind]
    torch.manual_seed(0)
    model = make()
    before, _ = saved_bytes(model, batch)
    checkpoint_blocks(model, True)
    after, output = saved_bytes(model, batch)
    assert after < before / 2
    copied = copy.deepcopy(model)  # a copy computes with its own weights
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.fill_(0.5)
    if torch.is_tensor(output):
        assert not torch.equal(copied.eval()(batch), model.eval()(batch))


def test_a_hugging_face_model_uses_its_own_switch(run):
    vision("transformers")
    plain = run("plain", model=HF_VIT)
    same = run("again", model=HF_VIT, gradient_checkpointing=True)
    assert all(torch.equal(plain[name], same[name]) for name in plain)
    log = next(Path("again").glob("*.log")).read_text()
    assert "ViTForImageClassification, by its own switch" in log


def test_an_ipu_refuses_checkpointing_by_name(config, train):
    path = config(model=VIT, data=DATA, gradient_checkpointing=True)
    status, _, err = train(path, "--device", "ipu", "--emulate")
    assert status == 2
    line = err.splitlines()[-1]
    assert "gradient_checkpointing: is not done on ipu" in line
    assert "train_ckpt_nodes" in line
