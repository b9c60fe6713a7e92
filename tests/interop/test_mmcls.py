"""Unmodified configs of MMClassification through the command line, on every device."""

import copy
import functools
import io
import json
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from devrun.cli.main import main
from devrun.config import Config
from devrun.errors import ConfigError
from devrun.hooks import Hook
from devrun.interop import scope_of
from devrun.runners.training import build_training
from tests.support.strict import zip_strict

pytestmark = [  # of packages that are no longer maintained
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]

TOOLS = Path(__file__).resolve().parents[2] / "tools"
LENET = "lenet/lenet5_mnist.py"
CIFAR = "resnet/resnet18_8xb16_cifar10.py"
SMALL = ["data.workers_per_gpu=0", "log_config.interval=1"]


@pytest.fixture(scope="module")
def survey(mmcls):
    """tools/openmmlab.py, which makes data up."""
    sys.path.insert(0, str(TOOLS))
    try:
        import openmmlab
    finally:
        sys.path.remove(str(TOOLS))
    return openmmlab


@pytest.fixture(scope="module")
def data(survey, tmp_path_factory):
    """A folder that the configs' own paths lead out of to made-up data."""
    folder = tmp_path_factory.mktemp("mmcls")
    survey.make_data(folder)
    survey.take_made_up_files()
    return folder


@pytest.fixture
def configs(survey, data, monkeypatch):
    monkeypatch.chdir(data)
    return survey.find_configs()


@pytest.fixture
def run(configs, tmp_path, capsys):
    """`run(config, device, *options)` -> (status, stderr, records of the log)."""

    def start(name, device="cpu", *options, flags=()):
        work = tmp_path / device
        words = ["train", str(configs.get(name, name)), "--device", device, *flags]
        words += ["--work-dir", str(work), "--seed", "1", "--no-progress"]
        words += ["--overwrite", *(["--emulate"] if device != "cpu" else [])]
        status = main([*words, "--cfg-options", *SMALL, *options])
        text = capsys.readouterr().err
        logs = sorted(work.glob("*.log.json"))
        lines = logs[-1].read_text().splitlines() if logs else []
        return status, text, [json.loads(line) for line in lines]

    return start


def losses(records):
    return [r["loss"] for r in records if r.get("mode") == "train"]


def accuracies(records):
    return [r["accuracy_top-1"] for r in records if r.get("mode") == "val"]


def tiny(tmp_path, configs, **changes):
    """LeNet-5 for two epochs of three updates, as a file below its config."""
    base = {"_base_": [str(configs[LENET])], "runner": {"max_epochs": 2}}
    train = {"type": "RepeatDataset", "times": 3, "_delete_": True}
    train["dataset"] = dict(Config.fromfile(configs[LENET]).data.train.to_dict())
    data = {"samples_per_gpu": 2, "train": train}
    path = tmp_path / "tiny.json"
    whole = {**base, "data": data, "evaluation": {"interval": 1}, **changes}
    path.write_text(json.dumps(whole))
    return str(path)


@pytest.mark.parametrize("device", ["ipu", "hpu"])
def test_losses_and_accuracy_are_those_of_the_cpu(run, configs, tmp_path, device):
    config = tiny(tmp_path, configs)
    status, text, cpu = run(config)
    assert status == 0, text
    status, text, other = run(config, device)
    assert status == 0, text
    assert len(losses(cpu)) == 6
    assert losses(other) == pytest.approx(losses(cpu), rel=1e-3)
    assert accuracies(cpu) == accuracies(other)


def test_losses_are_those_of_mmcvs_own_runner(survey, configs):
    sys.path.insert(0, str(TOOLS))
    try:
        import openmmlab_parity
    finally:
        sys.path.remove(str(TOOLS))
    found = openmmlab_parity.compare(configs[LENET])
    assert len(found["devrun"]) == 20
    assert found["difference"] < 1e-5


def test_saved_weights_are_tested_without_their_first_weights(
    run, configs, tmp_path, capsys
):
    config = tiny(tmp_path, configs)
    status, text, records = run(
        config, "cpu", "model.backbone.init_cfg.type=Pretrained"
    )
    assert status != 0  # needs its argument
    status, text, records = run(config)
    assert status == 0, text
    found = "model.init_cfg={'type':'Pretrained','checkpoint':'gone.pth'}"
    work = str(tmp_path / "cpu")
    status = main(["test", config, work, "--device", "cpu", "--cfg-options", found])
    out = capsys.readouterr()
    assert status == 0, out.err
    last = accuracies(records)[-1]
    assert f"{last:.4g}" in out.out


def test_a_pretrained_file_is_the_start_of_training(configs, tmp_path):
    torch.manual_seed(0)
    weight = torch.rand(6, 1, 5, 5)
    torch.save(
        {"state_dict": {"backbone.features.0.weight": weight}}, tmp_path / "w.pth"
    )
    init = {"type": "Pretrained", "checkpoint": str(tmp_path / "w.pth")}
    config = tiny(tmp_path, configs, model={"init_cfg": init})
    cfg = Config.fromfile(config)
    cfg.merge_from_dict({"device": "cpu", "work_dir": str(tmp_path / "w")})
    with closing(build_training(cfg, progress=False).runner) as runner:
        assert torch.equal(runner.model.backbone.features[0].weight, weight)


def test_precise_statistics_are_those_of_mmcls(configs, tmp_path, monkeypatch):
    import mmcv
    from mmcls.core.hook.precise_bn_hook import update_bn_stats

    # it prints to what was stdout when MMCV was imported: an earlier test's, closed
    bar = functools.partial(mmcv.ProgressBar, file=io.StringIO())
    monkeypatch.setattr(mmcv, "ProgressBar", bar)

    cfg = Config.fromfile(configs[CIFAR])
    precise = {"type": "PreciseBNHook", "num_samples": 4, "priority": "ABOVE_NORMAL"}
    average = {"type": "EMAHook", "momentum": 0.1, "interval": 2}
    cfg.merge_from_dict(
        {
            "custom_hooks": [precise, average],
            "data.samples_per_gpu": 1,
            "data.workers_per_gpu": 0,
            "runner.max_epochs": 1,
            "checkpoint_config.interval": -1,
            "device": "cpu",
            "seed": 1,
            "work_dir": str(tmp_path / "w"),
        }
    )
    batches, twins = [], []

    class Before(Hook):
        def before_train_iter(self, runner):
            batches.append(copy.deepcopy(runner.data_batch))

        def after_train_epoch(self, runner):
            twins.append(copy.deepcopy(runner.model))

    class Batches(list):
        batch_size = 1

    class After(Hook):
        def after_train_epoch(self, runner):
            update_bn_stats(twins[0], Batches(batches), 4)
            for (name, ours), theirs in zip_strict(
                runner.model.named_buffers(), twins[0].buffers()
            ):
                if "running" in name:
                    torch.testing.assert_close(ours, theirs)
            twins.append(runner.model)

    training = build_training(cfg, validate=False, progress=False)
    training.runner.register_hook(Before(), "HIGHEST")
    training.runner.register_hook(After(), "LOW")
    with closing(training.runner) as runner:
        training.run()
        (ema,) = (h for h in runner.hooks if type(h).__name__ == "EMAHook")
    assert len(twins) == 2
    assert ema.momentum == pytest.approx(0.1**2)  # MMCV's, not a decay an update


def test_mixup_is_drawn_anew_for_each_update_of_a_compiled_device(
    run, configs, tmp_path
):
    head = {
        "type": "MultiLabelLinearClsHead",
        "num_classes": 10,
        "in_channels": 120,
        "loss": {"type": "CrossEntropyLoss", "use_soft": True},
    }
    mixup = {"type": "BatchMixup", "alpha": 1.0, "num_classes": 10, "prob": 1.0}
    model = {
        "backbone": {"num_classes": -1},
        "neck": {"type": "GlobalAveragePooling", "_delete_": True},
        "head": {**head, "_delete_": True},
        "train_cfg": {"augments": mixup},
    }
    config = tiny(tmp_path, configs, model=model)
    flags = ("--no-validate",)
    status, text, records = run(config, "ipu", "optimizer.lr=0.0", flags=flags)
    assert status == 0, text
    assert len(set(losses(records))) > 1  # with the weights as they are


def test_a_scope_is_found_by_the_name_of_the_model(configs, tmp_path):
    assert scope_of(Config.fromfile(configs[LENET])) == "mmcls"
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"_base_": [str(configs[LENET])]}))
    assert scope_of(Config.fromfile(mine)) == "mmcls"
    assert scope_of({"model": {"type": "ImageClassifier"}}) == "mmcls"
    assert scope_of({"model": {"type": "MLP"}}) is None
    asked = {"model": {"type": "ImageClassifier"}, "default_scope": "devrun"}
    assert scope_of(asked) is None
    with pytest.raises(ConfigError, match="default_scope must be one of"):
        scope_of({**asked, "default_scope": "os"})


def test_a_val_phase_reads_its_data_as_training_does(run, configs, tmp_path):
    """The pipeline of an evaluation has no labels, which a loss needs."""
    config = tiny(tmp_path, configs, workflow=[["train", 1], ["val", 1]])
    status, text, records = run(config)
    assert status == 0, text
    phases = [r for r in records if r.get("mode") == "val"]
    assert sum("loss" in record for record in phases) == 2
    assert sum("accuracy_top-1" in record for record in phases) == 2
