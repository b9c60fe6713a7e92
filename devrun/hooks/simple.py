"""Hooks of a few lines: a function at one stage, a limit of time, the memory cache."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from devrun.config.numbers import parsed_duration
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest
from devrun.hooks.base import GENERIC, STAGES, Hook, Priority
from devrun.registry import HOOKS
from devrun.run import Run


@HOOKS.register_module()
class ClosureHook(Hook):
    """Calls `fn` at the stage `fn_name`.

    Args:
        fn_name: a stage, or a generic one such as `after_iter`.
        fn: takes what the stage passes: the runner, and for `on_exception` and the
            two checkpoint stages a second argument.

    Raises:
        UnknownNameError: there is no such stage.
        ConfigTypeError: `fn` cannot be called.
    """

    def __init__(self, fn_name: str, fn: Callable[..., Any]) -> None:
        known = (*STAGES, *GENERIC)
        if fn_name not in known:
            hint = nearest(str(fn_name), known)
            raise UnknownNameError(f"no hook stage {fn_name!r}; {hint}", key="fn_name")
        if not callable(fn):
            raise ConfigTypeError.of("fn", f"must be a function, got {fn!r}")
        vars(self)[fn_name] = fn


@HOOKS.register_module()
class EmptyCacheHook(Hook):
    """Asks the device to empty its memory cache, where it has one.

    Args:
        before_epoch, after_epoch, after_iter: where to do it, in train and in val.
    """

    def __init__(
        self,
        before_epoch: bool = False,
        after_epoch: bool = True,
        after_iter: bool = False,
    ) -> None:
        self._before_epoch, self._after_epoch = before_epoch, after_epoch
        self._after_iter = after_iter

    def before_epoch(self, runner: Run) -> None:
        if self._before_epoch:
            runner.adapter.empty_cache()

    def after_epoch(self, runner: Run) -> None:
        if self._after_epoch:
            runner.adapter.empty_cache()

    def after_iter(self, runner: Run) -> None:
        if self._after_iter:
            runner.adapter.empty_cache()


OUT_OF_TIME = "max_time is reached"
"""How the reason begins for which a `MaxTimeHook` stops a run."""


@HOOKS.register_module()
class MaxTimeHook(Hook):
    """Ends the run in order when `max_time` has passed; the key `runner.max_time`.

    The time is that of this process, from when the hook was made: a run that goes on
    in another process has it again.

    Args:
        max_time: seconds, or text such as `2h`, `1h30m` or `90s`.
    """

    priority: Any = Priority.LOWEST

    def __init__(self, max_time: float | str) -> None:
        seconds = parsed_duration(max_time)
        if seconds is None:
            raise ConfigError.of(
                "max_time", f"must be seconds, or such as 2h or 1h30m, got {max_time!r}"
            )
        self.max_time, self._ends = max_time, monotonic() + seconds

    def after_train_iter(self, runner: Run) -> None:
        if monotonic() >= self._ends:
            runner.request_stop(f"{OUT_OF_TIME} ({self.max_time})", alone=True)
