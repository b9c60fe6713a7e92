"""`ProfilerHook`: training as torch's profiler sees it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, Callable

from torch import profiler

from devrun.checkpoint.storage import check_writable
from devrun.config.numbers import whole_number
from devrun.errors import ConfigError, UnknownNameError, nearest
from devrun.hooks.base import Hook
from devrun.registry import HOOKS
from devrun.run import Run

ACTIVITIES: dict[str, profiler.ProfilerActivity] = {
    name.lower(): value for name, value in profiler.ProfilerActivity.__members__.items()
}


@HOOKS.register_module()
class ProfilerHook(Hook):
    """Records the first training epochs or iterations of a run, on rank 0.

    A trace is written to `<work_dir>/<timestamp>.pt.trace.json`, in Chrome's format,
    which TensorBoard reads too. A file that is there stays, and the trace gets a
    number, as `<timestamp>_2.pt.trace.json`.

    Args:
        by_epoch: `profile_iters` counts epochs, else iterations.
        profile_iters: how much is recorded before the trace is written; at most the
            run.
        activities: names such as `cpu` and `cuda`, or `auto`: all that torch can
            record here.
        schedule: arguments of `torch.profiler.schedule` (`wait`, `warmup`, `active`,
            `repeat`, `skip_first`); without it everything is recorded.
        on_trace_ready: called with the profiler for each trace, which is not written
            then; or `{type: log_trace}` with arguments of `key_averages().table`.
        record_shapes, profile_memory, with_stack, with_flops: as torch.profiler's.

    Raises:
        ConfigError: (a ValueError) a value that is not accepted; the message says why.
    """

    def __init__(
        self,
        by_epoch: bool = True,
        profile_iters: int = 1,
        activities: Sequence[str] | str = "auto",
        schedule: Mapping[str, int] | None = None,
        on_trace_ready: Callable[[Any], Any] | Mapping[str, Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
    ) -> None:
        self.by_epoch = by_epoch
        self.profile_iters = whole_number("profile_iters", profile_iters)
        self.on_trace_ready = on_trace_ready
        if isinstance(on_trace_ready, Mapping):
            _one_of("on_trace_ready", on_trace_ready.get("type"), ("log_trace",))
        names = list(ACTIVITIES) if activities == "auto" else list(activities)
        chosen = {ACTIVITIES[_one_of("activities", name, ACTIVITIES)] for name in names}
        here = set(profiler.supported_activities())
        self.options: dict[str, Any] = {
            "activities": chosen & here if activities == "auto" else chosen,
            "schedule": None if schedule is None else profiler.schedule(**schedule),
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
        }
        self.profiler: profiler.profile | None = None
        self._left = 0

    def before_run(self, runner: Run) -> None:
        if self.by_epoch and runner.max_epochs is None:
            raise ConfigError(
                "this run is counted in iterations; give the profiler by_epoch=False"
            )
        if runner.rank != 0:
            return
        self._left = self.profile_iters
        ready = self._handler(runner)
        self.profiler = profiler.profile(on_trace_ready=ready, **self.options)
        self.profiler.start()
        unit = "epochs" if self.by_epoch else "iterations"
        runner.logger.info("profiling the first %d %s", self._left, unit)

    def after_train_iter(self, runner: Run) -> None:
        self._step()
        if not self.by_epoch:
            self._count()

    def after_val_iter(self, runner: Run) -> None:
        self._step()

    def after_train_epoch(self, runner: Run) -> None:
        if self.by_epoch:
            self._count()

    def after_run(self, runner: Run) -> None:
        self._finish()

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self._finish()

    def _step(self) -> None:
        running, self.profiler = self.profiler, None
        if running is not None:
            running.step()  # when it fails, stopping it afterwards crashes the process
        self.profiler = running

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._finish()

    def _finish(self) -> None:
        running, self.profiler = self.profiler, None
        if running is not None:
            running.stop()

    def _handler(self, runner: Run) -> Callable[[profiler.profile], Any]:
        """Does with each trace what it is for."""
        given = self.on_trace_ready
        if callable(given):
            return given
        if given is not None:
            options = {key: value for key, value in given.items() if key != "type"}
            return lambda running: runner.logger.info(
                "profile:\n%s", running.key_averages().table(**options)
            )
        if runner.work_dir is None:
            raise ConfigError(
                "the profiler has nowhere to write, as the run has no work_dir: give "
                "it one, or the hook on_trace_ready"
            )
        place = Path(runner.work_dir) / runner.timestamp
        check_writable(place.parent)

        def write(running: profiler.profile) -> None:
            endings = chain([""], (f"_{number}" for number in count(2)))
            names = (f"{place}{ending}.pt.trace.json" for ending in endings)
            target = next(name for name in names if not os.path.lexists(name))
            running.export_chrome_trace(target)
            runner.logger.info("profile written to %s", target)

        return write


def _one_of(key: str, name: Any, known: Any) -> str:
    if name not in known:
        hint = nearest(str(name), known)
        raise UnknownNameError.of(key, f"knows no {name!r}; {hint}")
    return str(name)
