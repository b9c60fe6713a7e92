"""Whole runs by the command line on emulated IPUs."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from devrun.checkpoint import read_checkpoint
from devrun.cli.main import main
from devrun.config import Config
from devrun.runners.training import build_training
from tests.support.observe import Losses

ROOT = Path(__file__).resolve().parents[2]
DIGITS = str(ROOT / "configs/digits/resnet8_digits.yaml")
CIFAR = str(ROOT / "configs/resnet/resnet18_8xb16_cifar10.py")


def curve(tmp_path, **options):
    """Losses of an epoch of the digits, and the validation after it."""
    cfg = Config.fromfile(DIGITS)
    cfg.merge_from_dict({"runner.max_epochs": 1, "work_dir": str(tmp_path), **options})
    training = build_training(cfg, progress=False)
    losses = Losses()
    training.runner.register_hook(losses)
    training.run()
    training.runner.close()
    (log,) = tmp_path.glob("*.log.json")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return losses.values, next(r for r in records if r.get("mode") == "val")


def test_the_digits_have_the_loss_curve_of_the_cpu(tmp_path):
    # both average 128 samples an update, in micro-batches of 64 for BatchNorm
    mine, scores = curve(
        tmp_path / "ipu", device={"type": "ipu", "replicas": 2, "emulate": True}
    )
    theirs, expected = curve(
        tmp_path / "cpu",
        device="cpu",
        optimizer_config={"cumulative_iters": 2},
        **{"data.train_dataloader": {"drop_last": True}},
    )
    assert len(mine) == 11
    assert mine == pytest.approx(theirs[:11], rel=1e-3)
    # the running statistics are those of the first replica
    assert scores["loss"] == pytest.approx(expected["loss"], rel=0.2)


@pytest.fixture
def cifar(tmp_path):
    """A handful of images in files of CIFAR-10's binary layout."""
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for part in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        labels = draw.integers(0, 10, (7, 1), dtype=np.uint8)
        pixels = draw.integers(0, 256, (7, 3072), dtype=np.uint8)
        records = np.hstack([labels, pixels])
        (folder / f"{part}.bin").write_bytes(records.tobytes())
    return str(folder.parent)


def test_the_resnet_of_the_article_trains_evaluates_and_saves(cifar, tmp_path, capsys):
    work_dir = tmp_path / "out"
    options = ["runner.max_epochs=1", "data.workers_per_gpu=0"]
    options += [f"data.{part}.data_prefix={cifar}" for part in ("train", "val")]
    words = ["train", CIFAR, "--ipu-replicas", "1", "--emulate"]
    words += ["--work-dir", str(work_dir), "--cfg-options", *options]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "on ipu (emulated)" in told.out
    assert "micro-batch 16 x accumulation 1 x replicas 1 = 16 samples" in told.err
    assert "3 of 35 samples do not fill a whole update" in told.err
    facts = json.loads((work_dir / "run.json").read_text())
    assert facts["device"] == {"name": "ipu", "emulated": True}
    assert facts["iterations"] == 2
    saved = read_checkpoint(facts["last_checkpoint"])
    assert saved.manifest.environment["device"] == "ipu"
    assert saved.manifest.environment["emulated"] is True
    assert len(saved.parts["optimizer"]["state"]) == 62  # with momentum
    best = read_checkpoint(facts["best"]["checkpoint"]).parts["model"]
    assert best.keys() == saved.parts["model"].keys()
    assert all(type(value) is torch.Tensor for value in best.values())


def test_without_the_sdk_one_line_says_how_to_get_it(tmp_path, capsys):
    os.chdir(tmp_path)
    assert main(["train", DIGITS, "--ipu-replicas", "2"]) == 9
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "Poplar SDK" in told or "start a new one" in told
    assert "--emulate" in told


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["ipu.replicas=4"], "ipu: replicas is 4, but 2 was given for the device"),
        (["ipu_replicas=4"], "ipu_replicas: replicas is 4, but 2 was given"),
        (["device.type=ipu", "device.replicas=4"], "device.replicas of the config, 4"),
        (["ipu.replicationFactor=4"], "replicationFactor is 4"),
        (["runner.options_cfg.replicationFactor=4"], "replicationFactor is 4"),
    ],
)
def test_two_numbers_of_replicas_are_refused(options, says, tmp_path, capsys):
    words = ["train", DIGITS, "--ipu-replicas", "2", "--emulate", "--dry-run"]
    words += ["--work-dir", str(tmp_path), "--cfg-options", *options]
    assert main(words) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert says in told
    assert "give one" in told


def test_replicas_of_the_config_do_not_move_a_run_off_its_device(tmp_path, capsys):
    words = ["train", DIGITS, "--device", "cpu", "--dry-run"]
    words += ["--work-dir", str(tmp_path), "--cfg-options", "ipu_replicas=2"]
    assert main(words) == 0
    assert "on cpu" in capsys.readouterr().out
