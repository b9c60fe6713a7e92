"""A trained run of any of the shipped models, and `devrun export`."""

from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.support.command import command
from tests.support.shipped import TEXT


@pytest.fixture
def trained(tmp_path, monkeypatch, capsys):
    """`trained(model, data, **changes)`: the work_dir of one update."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("all that is gold does not glitter\n" * 20)

    def go(model, data, **changes):
        cfg = {
            "model": model,
            "loss": None if data is TEXT else {"type": "CrossEntropyLoss"},
            "data": {"samples_per_gpu": 4, "train": data, "val": data},
            "optimizer": {"type": "SGD", "lr": 0.1},
            "lr_config": {"policy": "fixed"},
            "runner": {"type": "IterBasedRunner", "max_iters": 1},
            "checkpoint_config": {"interval": 1},
            "device": "cpu",
            **changes,
        }
        Path("run.yaml").write_text(yaml.safe_dump(cfg))
        status, _, err = command(capsys, "train", "run.yaml", "--work-dir", "run")
        assert status == 0, err
        return "run"

    return go


@pytest.fixture
def export(capsys):
    return partial(command, capsys, "export")
