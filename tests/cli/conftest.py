"""A small run on made-up data, as a config file."""

import copy
import json
import os
from functools import partial
from pathlib import Path

import pytest
import yaml

from devrun.checkpoint import find_latest, read_checkpoint
from tests.support.command import command

CONFIG = {
    "model": {"type": "MLP", "in_features": 16, "hidden": [8], "num_classes": 4},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 8,
        "workers_per_gpu": 0,
        "train": {"type": "SyntheticClassification", "num_samples": 32},
        "val": {"type": "SyntheticClassification", "num_samples": 16, "offset": 32},
    },
    "optimizer": {"type": "SGD", "lr": 0.1},
    "lr_config": {"policy": "fixed"},
    "runner": {"type": "EpochBasedRunner", "max_epochs": 2},
    "checkpoint_config": {"interval": 1},
    "evaluation": {"metric": "accuracy", "save_best": "accuracy"},
    "log_config": {"interval": 2, "hooks": [{"type": "TextLoggerHook"}]},
    "device": "cpu",
}


def record(work_dir):
    return json.loads((Path(work_dir) / "run.json").read_text())


def logged(work_dir, mode="train"):
    """The records of one mode in the log of values."""
    (log,) = Path(work_dir).glob("*.log.json")
    lines = map(json.loads, log.read_text().splitlines())
    return [line for line in lines if line.get("mode") == mode]


def one_error(result, *statuses):
    """The only line of an error in what `train` returned."""
    found, _, err = result
    lines = [line for line in err.splitlines() if line.startswith("devrun: error: ")]
    assert found in statuses, err
    assert len(lines) == 1
    assert "Traceback" not in err
    return lines[0]


def newest(work_dir):
    return find_latest(Path(work_dir) / "checkpoints")


@pytest.fixture(autouse=True)
def in_tmp(tmp_path):
    os.chdir(tmp_path)


@pytest.fixture
def config(tmp_path):
    def write(name="small.yaml", **changes):
        cfg = {**copy.deepcopy(CONFIG), **changes}
        path = tmp_path / name
        path.write_text(yaml.safe_dump(cfg))
        return str(path)

    return write


@pytest.fixture
def train(capsys):
    """`train(*words)` -> (status, stdout, stderr)."""

    return partial(command, capsys, "train")


@pytest.fixture
def weights(config, train):
    """`weights(work_dir, *words, **changes)` trains; the weights that it saved."""

    def go(work_dir, *words, **changes):
        path = config(f"{work_dir}.yaml", **changes)
        status, _, err = train(path, "--work-dir", work_dir, "--seed", "1", *words)
        assert status == 0, err
        return read_checkpoint(newest(work_dir))["model"]

    return go
