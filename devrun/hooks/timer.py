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
    """

    priority: Any = Priority.LOW

    def __init__(self) -> None:
        self._start = perf_counter()
        self._data_time = 0.0

    def before_run(self, runner: Run) -> None:
        self._start = perf_counter()

    def before_epoch(self, runner: Run) -> None:
        self._start = perf_counter()

    def before_iter(self, runner: Run) -> None:
        self._data_time = perf_counter() - self._start

    def after_iter(self, runner: Run) -> None:
        now = perf_counter()
        times = {"data_time": self._data_time, "time": now - self._start}
        self._start = now
        runner.log_buffer.update(times)

    def exclude(self, seconds: float) -> None:
        """Leave `seconds` just spent out of the iteration that is being timed."""
        self._start += seconds


def exclude_time(runner: Run, seconds: float) -> None:
    """Tell the timers of a run that `seconds` just spent were not training.

    For hooks that stop at an iteration for long: evaluation, saving.
    """
    for hook in runner.hooks:
        if isinstance(hook, IterTimerHook):
            hook.exclude(seconds)
