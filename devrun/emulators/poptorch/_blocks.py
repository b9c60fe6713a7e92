"""Annotations that put parts of a model on IPUs. Without effect on numbers."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

import functools
from types import TracebackType
from typing import Any, Callable, TypeVar

from torch import nn

from poptorch import _capture
from poptorch._errors import Error
from poptorch._options_base import check

F = TypeVar("F", bound=Callable[..., Any])


class Block:
    """`with Block("a", ipu_id=0):` runs what is inside on IPU 0."""

    _next_auto_id = 0

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        check(user_id is None or isinstance(user_id, str), "user_id must be a string")
        check(ipu_id is None or isinstance(ipu_id, int), "ipu_id must be an integer")
        self._user_id = user_id
        self._ipu_id = ipu_id

    @staticmethod
    def useAutoId() -> None:
        """Number blocks without an id from 0 again; call it at the top of forward."""
        Block._next_auto_id = 0

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begin a block that lasts until the next one begins."""
        Block(user_id, ipu_id)._open()

    def _open(self) -> None:
        recorder = _capture.current()
        if recorder is None:
            return
        name = Block._auto_id() if self._user_id is None else self._user_id
        recorder.placement.open(name, self._ipu_id)

    @staticmethod
    def _auto_id() -> str:
        Block._next_auto_id += 1
        return str(Block._next_auto_id - 1)

    def __enter__(self) -> Block:
        recorder = _capture.current()
        if recorder is not None and recorder.placement.scoped:
            raise Error("Nested blocks are not supported: close the first one before")
        self._open()
        if recorder is not None:
            recorder.placement.scoped = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        recorder = _capture.current()
        if recorder is not None:
            recorder.placement.close()


_KEY = "_poptorch_begin_block"


class _BeginBlockHook:
    """The forward-pre-hook that a block annotation leaves on a module."""

    handle: Any

    def __init__(self, user_id: Any, ipu_id: int | None) -> None:
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if self._user_id is None and _capture.current() is not None:
            self._user_id = Block._auto_id()  # and keeps it
        user_id = None if self._user_id is None else str(self._user_id)
        Block.start(user_id, self._ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id!r}, ipu_id={self._ipu_id})"


def block_of(module: nn.Module) -> _BeginBlockHook | None:
    """The annotation of a module, if it begins a block and nobody took its hook off."""
    hook: _BeginBlockHook | None = module.__dict__.get(_KEY)
    hooks = None if hook is None else hook.handle.hooks_dict_ref()
    return hook if hooks is not None and hook.handle.id in hooks else None  # type: ignore[union-attr]


class LegacyBeginBlockFn(nn.Module):
    """A plain callable that begins a block."""

    def __init__(
        self, function: Any, user_id: str | None = None, ipu_id: int | None = None
    ) -> None:
        super().__init__()
        self._function = function
        self._user_id, self._ipu_id = user_id, ipu_id

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Begin the block and call the function."""
        Block.start(self._user_id, self._ipu_id)
        return self._function(*args, **kwargs)


def BeginBlock(
    layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None
) -> Any:
    """Begin a block where `layer_to_call` is called; returns the same module.

    Raises:
        Error: The module begins a block already.
    """
    if not callable(layer_to_call):
        raise Error("BeginBlock needs a module or a function")
    if not isinstance(layer_to_call, nn.Module):
        return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
    if block_of(layer_to_call):
        raise Error("The module has already been assigned to a block")
    hook = layer_to_call.__dict__[_KEY] = _BeginBlockHook(user_id, ipu_id)
    hook.handle = layer_to_call.register_forward_pre_hook(hook)
    return layer_to_call


def BlockFunction(
    user_id: str | None = None, ipu_id: int | None = None
) -> Callable[[F], F]:
    """Decorator: the function is a block."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]

    return decorate


def removeBlocks(module: nn.Module) -> None:
    """Remove what `BeginBlock` left on a module and the modules inside it."""
    check(isinstance(module, nn.Module), "removeBlocks needs a torch.nn.Module")
    for child in module.modules():
        hook = child.__dict__.pop(_KEY, None)
        if hook is not None:
            hook.handle.remove()


class Attribute:
    """`with Attribute(__outline={...}):` attaches attributes to operations."""

    def __init__(self, **attributes: dict[str, str]) -> None:
        for name, values in attributes.items():
            if not isinstance(values, dict):
                raise TypeError(f"Attribute {name} takes a dictionary")
        self._attributes = attributes

    def __enter__(self) -> Attribute:
        return self

    def __exit__(self, *details: object) -> None:
        return None


class NameScope:
    """`with NameScope("a"):` prefixes the names of operations."""

    def __init__(self, name: str) -> None:
        check(isinstance(name, str), "A name scope is a string")
        self._name = name

    def __enter__(self) -> NameScope:
        return self

    def __exit__(self, *details: object) -> None:
        return None


__all__ = [
    "Attribute",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "LegacyBeginBlockFn",
    "NameScope",
    "removeBlocks",
]
