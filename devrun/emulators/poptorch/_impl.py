"""Compile hooks, and the wrapped state of models as other packages look at it."""

# ruff: noqa: N802, N816 - PopTorch's names
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

from poptorch import _capture, _wrapped

_pre: OrderedDict[int, Callable[[], Any]] = OrderedDict()
_post: OrderedDict[int, Callable[[], Any]] = OrderedDict()


def _register(hooks: OrderedDict[int, Any], hook: Any) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"A compile hook must be callable, not {type(hook)}")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def registerPreCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call `hook()` before each compilation; hooks run in the order of registration."""
    return _register(_pre, hook)


def registerPostCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call `hook()` after each compilation, also after one that failed."""
    return _register(_post, hook)


def run_pre_compile_hooks() -> None:
    """Call the hooks that come before."""
    for hook in tuple(_pre.values()):
        hook()


def run_post_compile_hooks() -> None:
    """Call the hooks that come after."""
    for hook in tuple(_post.values()):
        hook()


def isRunningOnIpu() -> bool:
    """True while a forward is captured for the device, and only then."""
    return _capture.current() is not None


isDispatchTracing = isRunningOnIpu


class WithOptimizer:
    """The compiled module, as releases before 3.0 kept it: beside its optimizer.

    Everything but `model` and `optimizer` is the module's.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model = model
        self.optimizer = optimizer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not yet set, while it is copied
            raise AttributeError(name)
        return getattr(self.model, name)


def unwrapModelIfNecessary(model: Any) -> Any:
    """Make a wrapped model plain for a moment; `rewrapModelIfNecessary` undoes it."""
    executor = _wrapped.owner(model)
    if executor is not None:
        executor.copyWeightsToHostIfNeeded()
        _wrapped.unwrap(model)
    return executor


def rewrapModelIfNecessary(model: Any, executor: Any = None) -> None:
    """Give a model back to the executor that `unwrapModelIfNecessary` returned."""
    if executor is not None and not _wrapped.is_wrapped(model):
        _wrapped.wrap(model, executor)
