"""A hook of your own: end the run, in order, when its time is spent.

    python examples/own_hook.py

A hook overrides the stages it takes part in; what it saves survives a kill.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from devrun import HOOKS, EpochBasedRunner, Hook, Run
from devrun.data import DigitsDataset


@HOOKS.register_module()
class TimeBudgetHook(Hook):
    """Ends the run after so many seconds of training, those before a resume included.

    Args:
        seconds: the budget of the whole run.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.spent = 0.0
        self._since = 0.0

    def before_run(self, runner: Run) -> None:
        self._since = time.monotonic()

    def after_train_iter(self, runner: Run) -> None:
        now = time.monotonic()
        self.spent += now - self._since
        self._since = now
        runner.log_buffer.update({"seconds_spent": self.spent})
        if self.spent >= self.seconds:
            runner.request_stop(f"the budget of {self.seconds:g} s is spent")

    def state_dict(self) -> dict[str, Any]:
        return {"spent": self.spent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.spent = state["spent"]


def main(work_dir: str = "work_dirs/own_hook", seconds: float = 3.0) -> TimeBudgetHook:
    """Train until the time is over; the hook, with what was spent."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    to_unit = {"type": "Normalize", "mean": [78.0], "std": [96.0]}
    data = DigitsDataset("train", pipeline=[to_unit])
    runner = EpochBasedRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=nn.CrossEntropyLoss(),
        work_dir=work_dir,
        max_epochs=1000,
        seed=0,
    )
    hook = TimeBudgetHook(seconds)
    runner.register_hook(hook)
    runner.register_checkpoint_hook({"interval": 50})  # and once at the end
    runner.resume("auto")  # goes on where the last call ended; nothing at the first
    runner.run([DataLoader(data, batch_size=64, shuffle=True)])
    runner.close()
    return hook


if __name__ == "__main__":
    main()
