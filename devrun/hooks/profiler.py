"""`ProfilerHook`: training as torch's profiler sees it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from torch import profiler

from devrun.checkpoint.storage import check_possible, check_writable
from devrun.config.numbers import whole_number
from devrun.errors import ConfigError, UnknownNameError, nearest
from devrun.files import own_folder
from devrun.hooks.base import Hook
from devrun.registry import HOOKS
from devrun.run import Run

Handler = Callable[[profiler.profile], Any]

ACTIVITIES: dict[str, profiler.ProfilerActivity] = {
    name.lower(): value for name, value in profiler.ProfilerActivity.__members__.items()
}
HANDLERS = ("log_trace", "tb_trace")


@HOOKS.register_module()
class ProfilerHook(Hook):
    """Records the first training epochs or iterations of a run, on rank 0.

    Args:
        by_epoch: `profile_iters` counts epochs, else iterations.
        profile_iters: how much is recorded before the trace is written.
        activities: names such as `cpu` and `cuda`, or `auto`: the host and what the
            device adapter lists. One that this machine lacks is logged and left out.
        schedule: arguments of `torch.profiler.schedule` (`wait`, `warmup`, `active`,
            `repeat`, `skip_first`); without it everything is recorded.
        on_trace_ready: called with the profiler for each trace; or `{type: log_trace}`
            with arguments of `key_averages().table`, or `{type: tb_trace}`, which
            writes to the folder `dir_name` of `work_dir` what TensorBoard reads. By
            default the trace is written to `<work_dir>/<timestamp>_trace.json`.
        json_trace_path: where to write the trace (Chrome's format) instead, or as
            well when there is an `on_trace_ready`: a `.json` or `.json.gz`. A file
            that is there stays, and the trace gets a number, as `trace_2.json`.
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
        on_trace_ready: Handler | Mapping[str, Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        json_trace_path: str | None = None,
    ) -> None:
        self.by_epoch = by_epoch
        self.profile_iters = whole_number("profile_iters", profile_iters)
        self.activities = None if activities == "auto" else _named(activities)
        self.schedule = None if schedule is None else profiler.schedule(**schedule)
        self.on_trace_ready = on_trace_ready
        if isinstance(on_trace_ready, Mapping):
            kind = str(on_trace_ready.get("type"))
            if kind not in HANDLERS:
                raise UnknownNameError(
                    f"no on_trace_ready of type {kind!r}; {nearest(kind, HANDLERS)}",
                    key="on_trace_ready",
                )
        if not str(json_trace_path or ".json").endswith((".json", ".json.gz")):
            raise ConfigError.of(
                "json_trace_path",
                f"must end in .json or .json.gz, got {json_trace_path!r}",
            )
        self.json_trace_path = json_trace_path
        self.options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
        }
        self.profiler: profiler.profile | None = None
        self._left = 0

    def prepare_dry_run(self) -> bool:
        self.profile_iters = 1  # it has few iterations
        if self.json_trace_path is not None:
            check_possible(Path(self.json_trace_path).parent)
            self.json_trace_path = None
        if isinstance(self.on_trace_ready, Mapping):
            self.on_trace_ready = {"type": self.on_trace_ready["type"]}
        return True

    def before_run(self, runner: Run) -> None:
        total = runner.max_epochs if self.by_epoch else runner.max_iters
        unit = "epochs" if self.by_epoch else "iterations"
        if total is None:
            raise ConfigError(
                "this run is counted in iterations; give the profiler by_epoch=False"
            )
        if total < self.profile_iters:
            raise ConfigError(
                f"profile_iters is {self.profile_iters} {unit}, the run has {total}"
            )
        if runner.rank != 0:
            return
        self._left = self.profile_iters
        self.profiler = profiler.profile(
            activities=self._usable_activities(runner),
            schedule=self.schedule,
            on_trace_ready=self._handler(runner),
            **self.options,
        )
        self.profiler.start()
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

    def _usable_activities(self, runner: Run) -> list[Any]:
        if self.activities is None:
            return list(profiler.supported_activities())
        wanted = self.activities
        there = profiler.supported_activities()
        for activity in wanted:
            if activity not in there:
                runner.logger.warning(
                    "the profiler cannot record %s on this machine and leaves it out",
                    activity.name,
                )
        return [activity for activity in wanted if activity in there]

    def _handler(self, runner: Run) -> Handler:
        """Does with each trace what it is for."""
        given, ready = self.on_trace_ready, []
        if callable(given):
            ready.append(given)
        elif given is not None and given["type"] == "log_trace":
            options = {key: value for key, value in given.items() if key != "type"}
            ready.append(
                lambda running: runner.logger.info(
                    "profile:\n%s", running.key_averages().table(**options)
                )
            )
        if not ready or self.json_trace_path is not None:
            ready.append(self._trace_writer(runner))

        def handle(running: profiler.profile) -> None:
            for call in ready:
                call(running)

        return handle

    def _trace_writer(self, runner: Run) -> Handler:
        path = self._trace_path(runner)
        check_writable(path.parent)

        def write(running: profiler.profile) -> None:
            target = _free(path)
            running.export_chrome_trace(str(target))
            runner.logger.info("profile written to %s", target)

        return write

    def _trace_path(self, runner: Run) -> Path:
        if self.json_trace_path is not None:
            return Path(self.json_trace_path)
        if runner.work_dir is None:
            raise ConfigError(
                "the profiler has nowhere to write: the run has no work_dir; give "
                "json_trace_path or on_trace_ready"
            )
        if isinstance(self.on_trace_ready, Mapping):
            name = str(self.on_trace_ready.get("dir_name", "tf_tracing_logs"))
            folder = own_folder(runner.work_dir, name)
            return folder / f"{runner.timestamp}.pt.trace.json"
        return Path(runner.work_dir) / f"{runner.timestamp}_trace.json"


def _free(path: Path) -> Path:
    """`path`, with a number where something of that name is there."""
    number, found = 1, path
    while os.path.lexists(found):
        number += 1
        head, dot, tail = path.name.rpartition(".json")
        found = path.with_name(f"{head}_{number}{dot}{tail}")
    return found


def _named(names: Any) -> list[Any]:
    """The activities called `names`, each once."""
    for name in names:
        if name not in ACTIVITIES:
            raise UnknownNameError(
                f"no profiler activity {name!r}; {nearest(str(name), ACTIVITIES)}",
                key="activities",
            )
    return list(dict.fromkeys(ACTIVITIES[name] for name in names))
