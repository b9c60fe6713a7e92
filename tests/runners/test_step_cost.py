"""What devrun adds to a training step, counted: times differ with the machine."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import devrun
from devrun.hooks import Hook
from devrun.runners import EpochBasedRunner, IterBasedRunner

PACKAGE = str(Path(devrun.__file__).parent)
FIRST, STEPS = 5, 20
"""The step before which the counting begins, and how many are counted."""


class Count(Hook):
    """Counts the calls of devrun's functions from the end of one step to another's."""

    priority = "LOWEST"

    def __init__(self):
        self.calls = Counter()

    def after_train_iter(self, runner):
        if runner.iter + 1 == FIRST:
            sys.setprofile(self.note)
        elif runner.iter + 1 == FIRST + STEPS:
            sys.setprofile(None)

    def note(self, frame, event, argument):
        code = frame.f_code
        # of a comprehension, newer Pythons make no call
        ours = code.co_filename.startswith(PACKAGE) and code.co_name != "<listcomp>"
        if event == "call" and ours:
            self.calls[f"{Path(code.co_filename).name}:{code.co_name}"] += 1


SCHEDULE = {"policy": "CosineAnnealing", "by_epoch": False, "min_lr_ratio": 0.01}
CLIPPING = {"grad_clip": {"max_norm": 10.0}}
EPOCH, ITER = (
    (EpochBasedRunner, {"max_epochs": 1}),
    (IterBasedRunner, {"max_iters": 40}),
)


@pytest.mark.parametrize(
    ("runner", "hooks", "most"),
    [
        (EPOCH, (None, None), 16),
        (EPOCH, (SCHEDULE, CLIPPING), 33),
        (ITER, (SCHEDULE, CLIPPING), 39),
    ],
)
def test_a_step_calls_so_many_functions(runner, hooks, most, tmp_path):
    """With fewer `most` goes down; it goes up for a reason only."""
    model, count = nn.Linear(4, 3), Count()
    runner_type, limit = runner
    runner = runner_type(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        work_dir=str(tmp_path),
        device="cpu",
        **limit,
    )
    runner.register_training_hooks(
        *hooks, None, {"interval": 50, "hooks": [{"type": "TextLoggerHook"}]}
    )
    runner.register_hook(count)
    data = TensorDataset(torch.randn(80, 4), torch.arange(80) % 3)
    try:
        runner.run([list(DataLoader(data, batch_size=2))], [("train", 1)])
    finally:
        sys.setprofile(None)
    per_step = {name: calls / STEPS for name, calls in count.calls.items()}
    assert sum(count.calls.values()) <= most * STEPS, per_step
