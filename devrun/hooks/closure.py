"""`ClosureHook`: one function at one stage, without a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devrun.errors import ConfigTypeError, UnknownNameError, nearest
from devrun.hooks.base import GENERIC, STAGES, Hook
from devrun.registry import HOOKS


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
