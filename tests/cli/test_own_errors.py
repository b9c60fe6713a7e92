"""An exception of the user's own code: its file and line in the one line that a command
ends with, and in `run.json`; its traceback in the log."""

import json
import sys
from pathlib import Path

import pytest

from devrun import trust
from devrun.registry import COLLATE_FUNCTIONS, DATASETS, HOOKS, LOSSES, METRICS, MODELS

SOURCE = """
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from devrun import DATASETS, HOOKS, LOSSES, MODELS, TRANSFORMS, Hook
from devrun.registry import COLLATE_FUNCTIONS, METRICS

def helper():
    return undefined_name  # every one ends here

class Samples(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return torch.ones(16), index % 4

@DATASETS.register_module(force=True)
class Item(Samples):
    def __getitem__(self, index):
        return helper()

@DATASETS.register_module(force=True)
class Transformed(Samples):
    def __getitem__(self, index):
        from devrun.data import build_pipeline
        return build_pipeline([helper_transform])(torch.ones(16)), 1

def helper_transform(value):
    return helper()

@DATASETS.register_module(force=True)
class Constructor(Samples):
    def __init__(self):
        helper()

@DATASETS.register_module(force=True)
class Length(Samples):
    def __len__(self):
        return helper()

@DATASETS.register_module(force=True)
class Stream(IterableDataset):
    def __iter__(self):
        yield helper()
    def __len__(self):
        return 16

@COLLATE_FUNCTIONS.register_module(force=True)
def collated(samples):
    return helper()

@MODELS.register_module(force=True)
class Forward(nn.Linear):
    def __init__(self):
        super().__init__(16, 4)
    def forward(self, x):
        return helper()

@LOSSES.register_module(force=True)
class Loss(nn.Module):
    def forward(self, output, target):
        return helper()

@METRICS.register_module(force=True)
class Score:
    def reset(self):
        pass
    def update(self, outputs, targets):
        helper()
    def compute(self):
        return {"score": 1.0}

@HOOKS.register_module(force=True)
class Own(Hook):
    def after_train_iter(self, runner):
        helper()
"""
LINE = SOURCE.splitlines().index("    return undefined_name  # every one ends here") + 1
SAMPLES = {"type": "SyntheticClassification", "num_samples": 16}


def data(name="", **options):
    train = {"type": name} if name else SAMPLES
    return {"data": {"samples_per_gpu": 8, "train": train, "val": SAMPLES, **options}}


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "dr_faulty.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(trust, "_opened", set())
    yield
    sys.modules.pop("dr_faulty", None)
    for registry in (COLLATE_FUNCTIONS, DATASETS, HOOKS, LOSSES, METRICS, MODELS):
        for name, part in list(registry.module_dict.items()):
            if part.__module__ == "dr_faulty":
                del registry.module_dict[name]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        (data("Item"), 4),
        (data("Item", workers_per_gpu=1), 4),
        (data("Transformed"), 4),
        (data("Constructor"), 2),
        (data("Length"), 4),
        (data("Stream"), 4),
        (data("Stream", workers_per_gpu=1), 4),
        (data(collate_fn="collated"), 4),
        (data(collate_fn="collated", workers_per_gpu=1), 4),
        ({"model": {"type": "Forward"}}, 1),
        ({"loss": {"type": "Loss"}}, 1),
        ({"evaluation": {"metric": {"type": "Score"}}}, 1),
        ({"custom_hooks": [{"type": "Own"}]}, 1),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_its_line_is_named_and_its_traceback_logged(config, train, changes, status):
    path = config(**changes)
    found, _, err = train(path, "--import", "dr_faulty", "--work-dir", "run")
    last = err.splitlines()[-1]
    assert found == status, err
    told = f"dr_faulty.py:{LINE} in helper: NameError: name 'undefined_name' is not"
    assert told in last
    assert "Traceback" not in err
    (log,) = Path("run").glob("*.log")
    assert last.endswith(f"(traceback: {log})")
    assert "in helper\n" in log.read_text()
    assert told in Path("run/run.json").read_text()


def test_an_error_that_torch_raises_names_the_line_that_called_it(config, train):
    wrong = SOURCE.replace("undefined_name", "torch.ones(2) @ torch.ones(3)")
    Path("dr_faulty.py").write_text(wrong)
    path = config(model={"type": "Forward"})
    _, _, err = train(path, "--import", "dr_faulty", "--work-dir", "run")
    assert f"dr_faulty.py:{LINE} in helper: RuntimeError: " in err.splitlines()[-1]
