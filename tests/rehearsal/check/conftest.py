"""Plants a fault in a small training, and rehearses it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from tests.support import zygote

SCRIPT = Path(__file__).with_name("rehearse.py")
ROOT = SCRIPT.parents[3]
CLEAN = """
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS

{module}


@DATASETS.register_module()
class Rows(Dataset):
    def __init__(self, size=64):
        self.size = size
        {dataset_init}

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        row = torch.randn(4, generator=torch.Generator().manual_seed(index))
        label = index % 3
        {getitem}
        return row, label


@HOOKS.register_module()
class Own(Hook):
    {hook}


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)
        {init}

    def forward(self, x):  # forward
        h = F.relu(self.fc(x))
        {forward}
        return self.head(h)
"""
DEFAULTS = {
    "module": "",
    "dataset_init": "pass",
    "getitem": "pass",
    "hook": "pass",
    "init": "pass",
    "forward": "pass",
}
CONFIG = {
    "model": {"type": "Planted"},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 4,
        "train": {"type": "Rows"},
        "val": {"type": "Rows", "size": 8},
    },
    "optimizer": {"type": "SGD", "lr": 0.1},
    "runner": {"type": "EpochBasedRunner", "max_epochs": 3},
}


class Rehearsed:
    """What a rehearsal found, and the lines of the source it ran."""

    def __init__(self, notes, source, file):
        self.notes, self.source, self.file = notes, source, file
        self.findings = notes["findings"]

    def line(self, marker):
        """`file:line` of the line that ends in `# marker`."""
        lines = self.source.splitlines()
        number = next(n for n, text in enumerate(lines, 1) if f"# {marker}" in text)
        return f"{self.file}:{number}"

    def brief(self):
        return [(f["severity"], f["kind"], f["what"]) for f in self.findings]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """A check judges what a GPU would do without one, on machines that have one too."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def rehearse(tmp_path):
    """`rehearse(device, mode="", parts={}, config={}, memory="")` -> Rehearsed."""

    def run(device, mode="", parts=None, config=None, memory=""):
        body = {**DEFAULTS, **(parts or {})}
        source = CLEAN
        for name, text in body.items():
            pattern = re.compile(rf"^( *)\{{{name}\}}", re.M)
            indent = pattern.search(source)[1]
            lines = text.strip("\n").splitlines()
            source = pattern.sub(
                lambda _, i=indent, each=lines: "\n".join(i + one for one in each),
                source,
            )
        (tmp_path / "dr_planted_here.py").write_text(source)
        cfg = {**CONFIG, **(config or {})}
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(cfg))
        words = [SCRIPT, "c.yaml", device, mode, "dr_planted_here", memory]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = zygote.run(words, env=env, cwd=tmp_path, timeout=120)
        assert "NOTES" in done.stdout, done.stderr
        notes = json.loads(done.stdout.rpartition("NOTES ")[2])
        return Rehearsed(notes, source, tmp_path / "dr_planted_here.py")

    return run
