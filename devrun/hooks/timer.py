"""`IterTimerHook`: how long an iteration and its wait for data take."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from devrun.hooks.base import HOOKS, Hook, Priority
from devrun.run import Run


@HOOKS.register_module()
class IterTimerHook(Hook):
    """Logs `data_time` (until the batch is there) and `time` (all of it), in seconds.

    These are times of the host: on a device that works in the background a mean over
    some iterations is exact, a single value is not.

    `spent` has the seconds of this process so far: `data` and `step` of training, and
    what `exclude_time` was told of: `evaluation`, `saving`.
    """

    priority: Any = Priority.LOW

    def __init__(self) -> None:
        self._start = perf_counter()
        self._data_time = 0.0
        self.spent = {"data": 0.0, "step": 0.0, "evaluation": 0.0, "saving": 0.0}

    def before_run(self, runner: Run) -> None:
        self._start = perf_counter()

    def before_epoch(self, runner: Run) -> None:
        self._start = perf_counter()

    def before_iter(self, runner: Run) -> None:
        self._data_time = perf_counter() - self._start

    def after_iter(self, runner: Run) -> None:
        now = perf_counter()
        data, whole = self._data_time, now - self._start
        self._start = now
        runner.log_buffer.update({"data_time": data, "time": whole})
        if runner.mode == "train":
            self.spent["data"] += data
            self.spent["step"] += whole - data
        else:
            self.spent["evaluation"] += whole

    def exclude(self, seconds: float, part: str) -> None:
        """Leave `seconds` just spent out of the iteration that is being timed."""
        self._start += seconds
        self.spent[part] = self.spent.get(part, 0.0) + seconds


def exclude_time(runner: Run, seconds: float, part: str) -> None:
    """Tell the timers of a run that `seconds` just spent were not training.

    For hooks that stop at an iteration for long. `part` is what it was instead, such
    as `evaluation` or `saving`.
    """
    for hook in runner.hooks:
        if isinstance(hook, IterTimerHook):
            hook.exclude(seconds, part)
