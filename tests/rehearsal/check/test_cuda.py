"""What `devrun check --device cuda --memory SIZE` says of batches that do not fit."""

from __future__ import annotations

import json

import pytest
import yaml

from devrun.cli.main import main

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from devrun.registry import MODELS
"""
CONFIG = {
    "custom_imports": {"imports": ["planted"]},
    "model": {"type": "Planted"},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 8,
        "workers_per_gpu": 0,
        "train": {"type": "SyntheticClassification", "num_samples": 48},
        "val": {"type": "SyntheticClassification", "num_samples": 8, "offset": 48},
    },
    "optimizer": {"type": "AdamW", "lr": 0.01},
    "lr_config": {"policy": "fixed"},
    "runner": {"type": "EpochBasedRunner", "max_epochs": 2},
    "evaluation": {"metric": "accuracy"},
}


@pytest.fixture
def check(tmp_path, capsys):
    """`check(source, data, *words)` -> the status, and the result of CUDA.

    `data` is changes of the config's section of that name.
    """

    def run(source, data, *words):
        (tmp_path / "planted.py").write_text(HEAD + source)
        config = {**CONFIG, "data": {**CONFIG["data"], **data}}
        path = tmp_path / "planted.yaml"
        path.write_text(yaml.safe_dump(config))
        words = [str(path), "--trust-config", "--json", "--device", "cuda", *words]
        capsys.readouterr()
        status = main(["check", *words])
        (result,) = json.loads(capsys.readouterr().out)["devices"]
        assert not result["ended"]
        return status, result

    return run


STACK = """
@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 1024)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.last = nn.Linear(1024, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(1024, 1024), nn.Linear(1024, 1024)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))
"""
WEIGHTS = 4 * (16 * 1024 + 1024 + 12 * (1024**2 + 1024) + 4 * 1024 + 4)


@pytest.mark.slow
def test_a_batch_that_does_not_fit_gets_a_micro_batch_that_does(tmp_path, check):
    data = {"samples_per_gpu": 65536}
    status, found = check(STACK, data, "--memory", "2GiB")
    (finding,) = found["findings"]
    assert finding["kind"] == "out of memory" and finding["severity"] == "breaks"
    text = (tmp_path / "planted.yaml").read_text().splitlines()
    assert "samples_per_gpu: 65536" in text[int(finding["site"].rpartition(":")[2]) - 1]
    memory = found["facts"]["memory in MiB"]
    assert memory["weights"] == pytest.approx(WEIGHTS / 2**20, rel=1e-3)
    assert memory["optimizer state"] == pytest.approx(2 * memory["weights"], rel=1e-3)
    assert memory["samples"] == 65536
    # of each block, what up was given, what gelu was, and what down was: 4 KiB each
    assert memory["activations"] > 65536 * 6 * 3 * 4 / 1024
    ((key, samples),) = finding["fix"].items()
    assert key == "optimizer_config.micro_batch" and 65536 % samples == 0
    assert status == 11
    options = [f"{key}={samples}"]
    words = ("--memory", "2GiB", "--cfg-options", *options)
    status, found = check(STACK, data, *words)
    assert status == 0 and not found["findings"]
    peak = found["facts"]["memory in MiB"]["peak"]
    assert 512 < peak < 2048 - 512


DEEP = """
@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        wide = self.last(x).repeat(1, 2**19)
        for block in self.blocks:
            wide = block(wide)
        return wide[:, :4]

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(1, 1, bias=False)

    def forward(self, x):
        for _ in range(8):
            x = torch.sin(x)
        return x * self.scale.weight
"""


@pytest.mark.slow
def test_a_sample_that_does_not_fit_gets_recomputation(check):
    data = {"samples_per_gpu": 1}
    words = ("--steps", "1", "--memory", "850MiB")
    found = check(DEEP, data, *words)[1]
    (finding,) = found["findings"]
    # of each block, eight times what sin was given and once what the scale was: 8 MiB
    activations = found["facts"]["memory in MiB"]["activations"]
    assert 8 * 9 * 8 <= activations < 8 * 9 * 8 * 1.1
    assert finding["fix"] == {"gradient_checkpointing": True}
    options = ["--cfg-options", "gradient_checkpointing=true"]
    assert check(DEEP, data, *words, *options)[1]["findings"] == []
