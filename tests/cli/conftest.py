"""A small run on made-up data, as a config file."""

from __future__ import annotations

import copy
import os
from functools import partial

import pytest
import yaml

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


@pytest.fixture(autouse=True)
def in_tmp(tmp_path):
    os.chdir(tmp_path)


@pytest.fixture
def config(tmp_path):
    """Write the small config with some keys changed; its path."""

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
