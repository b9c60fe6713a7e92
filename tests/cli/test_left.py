"""`sys.exit` in the code of a run, wherever that is, is no end in order."""

import sys
from pathlib import Path

import pytest
import torch

from devrun.cli.main import main
from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, LOSSES, MODELS
from tests.cli.conftest import record

PLACES = (
    "data", "length", "sample", "model", "forward", "loss", "iter", "saving", "end",
)  # fmt: skip
at = {"place": None, "code": 0}


def leave(place):
    if at["place"] == place:
        sys.exit(at["code"])


@DATASETS.register_module()
class LeavingData(torch.utils.data.Dataset):
    def __init__(self):
        leave("data")

    def __len__(self):
        leave("length")
        return 16

    def __getitem__(self, index):
        leave("sample")
        return torch.zeros(4), 0


@MODELS.register_module()
class LeavingModel(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        leave("model")

    def forward(self, x):
        leave("forward")
        return super().forward(x)


@LOSSES.register_module()
class LeavingLoss(torch.nn.CrossEntropyLoss):
    def forward(self, output, target):
        leave("loss")
        return super().forward(output, target)


@HOOKS.register_module()
class LeavingHook(Hook):
    def after_train_iter(self, runner):
        leave("iter")

    def before_save_checkpoint(self, runner, checkpoint):
        leave("saving")

    def after_run(self, runner):
        leave("end")


@pytest.mark.parametrize(
    ("place", "code"),
    [*((place, 0) for place in PLACES), ("iter", 3), ("iter", None), ("iter", "bye")],
)
def test_sys_exit_in_the_code_of_a_run_is_a_failure(
    train, config, monkeypatch, place, code
):
    monkeypatch.setitem(at, "place", place)
    monkeypatch.setitem(at, "code", code)
    file = config(
        model={"type": "LeavingModel"},
        loss={"type": "LeavingLoss"},
        data={"samples_per_gpu": 8, "train": {"type": "LeavingData"}},
        custom_hooks=[{"type": "LeavingHook"}],
    )
    status, _, text = train(file, "--work-dir", "run")
    assert status == 1
    (line,) = [line for line in text.splitlines() if "sys.exit" in line]
    shown = "" if code is None else repr(code)
    assert line.startswith(f"devrun: error: sys.exit({shown}) was called in leave (")
    assert "request_stop" in line
    facts = record("run")
    assert (facts["status"], facts["exit_code"]) == ("failed", 1)
    assert "sys.exit" in facts["error"]
    (log,) = Path("run").glob("*.log")
    assert "SystemExit" in log.read_text()


def test_a_data_worker_that_leaves_is_no_end_either(train, config, monkeypatch):
    monkeypatch.setitem(at, "place", "sample")
    data = {
        "samples_per_gpu": 8,
        "workers_per_gpu": 1,
        "train": {"type": "LeavingData"},
    }
    file = config(model={"type": "LeavingModel"}, data=data)
    status, _, text = train(file, "--work-dir", "run")
    assert status == 4
    assert "worker" in text
    assert record("run")["status"] == "failed"


def test_an_evaluation_that_is_left_is_no_result(train, config, monkeypatch, capsys):
    data = {"samples_per_gpu": 8, "train": {"type": "LeavingData"}}
    data["val"] = data["train"]
    file = config(
        model={"type": "LeavingModel"}, data=data, evaluation={"metric": "accuracy"}
    )
    assert train(file, "--work-dir", "run")[0] == 0
    monkeypatch.setitem(at, "place", "forward")
    assert main(["test", file, "run", "--split", "val"]) == 1
    assert "sys.exit(0) was called in leave (" in capsys.readouterr().err
