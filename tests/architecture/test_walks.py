"""The roads through the code that a reader walks by searching for names."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import devrun
from devrun.models.step_module import StepModule
from devrun.runners import EpochBasedRunner

PACKAGE = Path(devrun.__file__).parent
WALK = [
    ("loops.py", "run_iter"),
    ("eager.py", "train_step"),
    ("update.py", "step"),
    ("update.py", "gradients"),
]


class Linear(nn.Linear):
    """Notes the calls that led to each backward pass."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.walks: list[list[tuple[str, str]]] = []

    def forward(self, x):
        y = super().forward(x)
        y.register_hook(lambda _: self.walks.append(calls_after("train_epoch")))
        return y


class MmcvLinear(Linear):
    def train_step(self, data, optimizer):
        loss = nn.functional.cross_entropy(self(data[0]), data[1])
        return {"loss": loss, "log_vars": {}, "num_samples": len(data[0])}


def calls_after(name):
    stack = traceback.extract_stack()
    loop = max(i for i, frame in enumerate(stack) if frame.name == name)
    calls = [(Path(frame.filename), frame.name) for frame in stack[loop + 1 :]]
    return [(file.name, name) for file, name in calls if PACKAGE in file.parents]


@pytest.mark.parametrize("cumulative", [1, 2])
@pytest.mark.parametrize("model", [Linear, MmcvLinear])
def test_a_batch_walks_to_backward_in_three_calls(model, cumulative, tmp_path):
    model, loss = model(), nn.CrossEntropyLoss()
    runner = EpochBasedRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=None if isinstance(model, MmcvLinear) else loss,
        optimizer_config={"cumulative_iters": cumulative},
        max_epochs=1,
        work_dir=str(tmp_path),
        device="cpu",
    )
    data = TensorDataset(torch.randn(8, 4), torch.arange(8) % 3)
    runner.run([DataLoader(data, batch_size=2)], [("train", 1)])
    walks = [[call for call in w if call[1] != "<lambda>"] for w in model.walks]
    assert walks == [WALK] * 4


def test_only_a_models_own_step_has_to_be_watched():
    assert StepModule(MmcvLinear()).may_update
    assert not StepModule(Linear(), nn.CrossEntropyLoss()).may_update
