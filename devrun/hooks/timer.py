"""`IterTimerHook`: how long an iteration and its wait for data take."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from devrun.data.timing import Clock
from devrun.hooks.base import Hook, Priority
from devrun.registry import HOOKS
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
        self._training = 0.0
        self._others = {"evaluation": 0.0, "saving": 0.0}
        self.clock = Clock()
        """Of the run, which splits the time of training."""

    @property
    def spent(self) -> dict[str, float]:
        """Seconds of this process so far: `data` (waiting for it), `copy`, `compute`
        and `hooks` of training, and what `exclude_time` was told of."""
        clock = self.clock
        known = {"data": clock.data, "copy": clock.copy, "compute": clock.compute}
        hooks = max(self._training - sum(known.values()), 0.0)
        return {**known, "hooks": hooks, **self._others}

    def before_run(self, runner: Run) -> None:
        self.clock = runner.state.clock
        self._start = perf_counter()

    def before_epoch(self, runner: Run) -> None:
        self._start = perf_counter()

    def before_iter(self, runner: Run) -> None:
        self._data_time = perf_counter() - self._start

    def after_iter(self, runner: Run) -> None:
        now = perf_counter()
        whole = now - self._start
        self._start = now
        runner.log_buffer.update({"data_time": self._data_time, "time": whole})
        if runner.mode == "train":
            self._training += whole
        else:
            self._others["evaluation"] += whole

    def exclude(self, seconds: float, part: str) -> None:
        """Leave `seconds` just spent out of the iteration that is being timed."""
        self._start += seconds
        self._others[part] = self._others.get(part, 0.0) + seconds


def exclude_time(runner: Run, seconds: float, part: str) -> None:
    """Tell the timers of a run that `seconds` just spent were not training.

    For hooks that stop at an iteration for long. `part` is what it was instead, such
    as `evaluation` or `saving`.
    """
    for hook in runner.hooks:
        if isinstance(hook, IterTimerHook):
            hook.exclude(seconds, part)
