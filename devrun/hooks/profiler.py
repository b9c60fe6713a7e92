"""`ProfilerHook`: records training with torch.profiler and writes the trace."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import profiler

from devrun.checkpoint.storage import check_possible, check_writable
from devrun.config.numbers import whole_number
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest
from devrun.files import own_folder
from devrun.hooks.base import Hook
from devrun.registry import HOOKS
from devrun.run import Run
from devrun.text import joined

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
            with arguments of `key_averages().table`, or `{type: tb_trace}` with those
            of `torch.profiler.tensorboard_trace_handler`. By default the trace is
            written to `<work_dir>/<timestamp>_trace.json`.
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
        if not isinstance(by_epoch, bool):
            raise ConfigTypeError.of("by_epoch", f"must be a bool, got {by_epoch!r}")
        self.by_epoch = by_epoch
        self.profile_iters = whole_number("profile_iters", profile_iters)
        self.activities = activities
        self.schedule = _schedule(schedule)
        self.on_trace_ready = _checked_handler(on_trace_ready, json_trace_path)
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
        if activities != "auto":
            _named(activities)
        self.profiler: profiler.profile | None = None
        self._left = 0

    def prepare_dry_run(self) -> bool:
        self.profile_iters = 1  # it has few iterations
        if self.json_trace_path is not None:
            check_possible(Path(self.json_trace_path).parent)
            self.json_trace_path = None
        if isinstance(self.on_trace_ready, dict):
            self.on_trace_ready.pop("dir_name", None)
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
        if self.profiler is None:
            return
        self._step()
        if not self.by_epoch:
            self._count(runner)

    def after_val_iter(self, runner: Run) -> None:
        if self.profiler is not None:
            self._step()

    def after_train_epoch(self, runner: Run) -> None:
        if self.by_epoch and self.profiler is not None:
            self._count(runner)

    def after_run(self, runner: Run) -> None:
        self._finish(runner)

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self._finish(runner)

    def _step(self) -> None:
        running, self.profiler = self.profiler, None
        if running is None:
            return
        with warnings.catch_warnings():
            # Each cycle is written before the next one clears it.
            warnings.filterwarnings("ignore", ".*Profiler clears events")
            running.step()  # when it fails, stopping it afterwards crashes the process
        self.profiler = running

    def _count(self, runner: Run) -> None:
        self._left -= 1
        if self._left == 0:
            self._finish(runner)

    def _finish(self, runner: Run) -> None:
        running, self.profiler = self.profiler, None
        if running is not None:
            runner.logger.info("writing the profile; this may take a while")
            running.stop()

    def _usable_activities(self, runner: Run) -> list[Any]:
        if self.activities == "auto":
            own = runner.adapter.profiler_activities()
            wanted = list(dict.fromkeys([profiler.ProfilerActivity.CPU, *own]))
        else:
            wanted = _named(self.activities)
        there = profiler.supported_activities()
        for activity in wanted:
            if activity not in there:
                runner.logger.warning(
                    "the profiler cannot record %s on this machine and leaves it out",
                    activity.name,
                )
        usable = [activity for activity in wanted if activity in there]
        if not usable:
            raise ConfigError(
                f"none of activities {list(self.activities)} can be recorded on this "
                f"machine; it has: {', '.join(sorted(a.name.lower() for a in there))}"
            )
        return usable

    def _handler(self, runner: Run) -> Handler:
        """Calls what each trace goes to."""
        given, handlers = self.on_trace_ready, []
        if given is not None:
            handlers.append(given if callable(given) else _configured(given, runner))
        if given is None or self.json_trace_path is not None:
            handlers.append(self._json_writer(runner))

        def ready(running: profiler.profile) -> None:
            for handle in handlers:
                handle(running)

        return ready

    def _json_writer(self, runner: Run) -> Handler:
        if self.json_trace_path is not None:
            path = Path(self.json_trace_path)
        elif runner.work_dir is not None:
            path = Path(runner.work_dir) / f"{runner.timestamp}_trace.json"
        else:
            raise ConfigError(
                "the profiler has nowhere to write: the run has no work_dir; give "
                "json_trace_path or on_trace_ready"
            )
        check_writable(path.parent)

        def write(running: profiler.profile) -> None:
            target = _free(path)
            running.export_chrome_trace(str(target))
            runner.logger.info("profile written to %s", target)

        return write


def _schedule(arguments: Mapping[str, int] | None) -> Any:
    if arguments is None:
        return None
    if not isinstance(arguments, Mapping):
        raise ConfigTypeError.of(
            "schedule",
            f"must be a dict with wait, warmup and active, got {arguments!r}",
        )
    try:
        return profiler.schedule(**arguments)
    except (TypeError, AssertionError) as error:
        cause = joined(error)
        raise ConfigError.of(
            "schedule", f"{dict(arguments)} is refused: {cause}"
        ) from error


def _checked_handler(given: Any, json_trace_path: str | None) -> Any:
    if given is None or (callable(given) and not isinstance(given, Mapping)):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError.of(
            "on_trace_ready", f"must be a function, a dict or None, got {given!r}"
        )
    kind = str(given.get("type"))
    if kind not in HANDLERS:
        raise UnknownNameError(
            f"no on_trace_ready of type {kind!r}; {nearest(kind, HANDLERS)}",
            key="on_trace_ready",
        )
    if kind == "tb_trace" and json_trace_path is not None:
        raise ConfigError(
            "a trace can be written once: give json_trace_path or "
            "on_trace_ready={type: tb_trace}, not both",
            key="on_trace_ready",
        )
    return dict(given)


def _configured(given: Mapping[str, Any], runner: Run) -> Handler:
    options = {key: value for key, value in given.items() if key != "type"}
    if given["type"] == "log_trace":
        return lambda running: runner.logger.info(
            "profile:\n%s", running.key_averages().table(**options)
        )
    folder = Path(options.pop("dir_name", "tf_tracing_logs"))
    if runner.work_dir is None and not folder.is_absolute():
        raise ConfigError(
            "tb_trace has nowhere to write: the run has no work_dir; give an absolute "
            "dir_name"
        )
    if not folder.is_absolute():
        folder = own_folder(str(runner.work_dir), str(folder))
    if os.path.basename(worker := str(options.get("worker_name", ""))) != worker:
        raise ConfigError.of("worker_name", f"must be a plain name, got {worker!r}")
    check_writable(folder)
    try:
        handler: Handler = profiler.tensorboard_trace_handler(str(folder), **options)
    except TypeError as error:
        raise ConfigError(
            f"on_trace_ready {dict(given)} is refused: {error}"
        ) from error
    return handler


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
    if not isinstance(names, (list, tuple)) or not names:
        raise ConfigError.of(
            "activities", f"must be 'auto' or a list of names, got {names!r}"
        )
    found: dict[Any, None] = {}
    for name in names:
        key = str(name).lower()
        if key not in ACTIVITIES:
            hint = nearest(key, ACTIVITIES)
            raise UnknownNameError(
                f"no profiler activity {name!r}; {hint}", key="activities"
            )
        found[ACTIVITIES[key]] = None
    return list(found)
