"""Two batches of the evaluation are tried before a new run's first update."""

import pytest
import torch

from devrun.checkpoint import read_checkpoint
from tests.cli.conftest import logged, newest, one_error, record

OWN = """
import torch
from torch.utils.data import Dataset
from devrun.registry import DATASETS, METRICS


@METRICS.register_module()
class BrokenInSanity:
    def reset(self): pass
    def update(self, outputs, targets): pass
    def compute(self): return 1 / 0


@DATASETS.register_module()
class NoiseOfSanity(Dataset):
    read = []

    def __init__(self, length): self.length = length

    def __len__(self): return self.length

    def __getitem__(self, index):
        self.read.append(index)
        return torch.randn(16), index % 4
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "sanity_parts.py").write_text(OWN)
    return ("--import", "sanity_parts")


def test_a_wrong_metric_costs_no_epoch(config, train, own):
    path = config(evaluation={"metric": {"type": "BrokenInSanity"}})
    result = train(path, *own, "--work-dir", "out")
    assert "ZeroDivisionError" in one_error(result, 1)
    assert "tried before training (--no-sanity does not)" in result[2]
    assert "iterations" not in record("out")  # it has not begun


def test_so_does_a_wrong_score(config, train):
    path = config(
        evaluation={"metric": "accuracy", "save_best": "acuracy", "rule": "greater"}
    )
    error = one_error(train(path, "--work-dir", "out"), 2)
    assert "save_best='acuracy' is not a result" in error
    assert "iterations" not in record("out")  # it has not begun


def test_it_is_left_out_on_demand_and_after_a_resume(config, train, own):
    path = config(evaluation={"metric": {"type": "BrokenInSanity"}, "interval": 9})
    out = ("--work-dir", "out", *own)
    assert train(path, *out, "--no-sanity")[0] == 0
    assert (
        train(
            path, *out, "--resume-from", "auto", "--cfg-options", "runner.max_epochs=3"
        )[0]
        == 0
    )
    assert record("out")["epochs"] == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_it_changes_no_bit_of_the_run(config, train, own, workers):
    data = {
        "samples_per_gpu": 8,
        "workers_per_gpu": workers,
        "train": {"type": "NoiseOfSanity", "length": 32},
        "val": {"type": "NoiseOfSanity", "length": 40},
    }
    model = {
        "type": "MLP",
        "in_features": 16,
        "hidden": [8],
        "num_classes": 4,
        "dropout": 0.5,
    }
    path = config(data=data, model=model)
    found = []
    for flags in ([], ["--no-sanity"]):
        out = f"out{len(flags)}"
        assert train(path, "--seed", "1", "--work-dir", out, *own, *flags)[0] == 0
        lines = logged(out) + logged(out, "val")
        losses = [line["loss"] for line in lines]
        found.append((read_checkpoint(newest(out))["model"], losses))
    (first, first_losses), (second, second_losses) = found
    assert first_losses == second_losses
    assert all(torch.equal(first[name], second[name]) for name in second)
