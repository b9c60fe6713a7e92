"""MMCV's mixed-precision decorators, for models that carry them.

The runner's `optimizer_config` (or `fp16` section) already runs the whole step in
autocast, on any device and in bf16 as well, and sets `fp16_enabled` on the modules
that have it. What the decorators add is an exact type at one function: low precision
at the entrance of `auto_fp16`, fp32 inside `force_fp32`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any, Callable, TypeVar

import torch
from torch import nn

from devrun.errors import ConfigTypeError
from devrun.tensors import map_tensors, tensors_in
from devrun.torch_features import autocast_dtype

F = TypeVar("F", bound=Callable[..., Any])


def auto_fp16(
    apply_to: Iterable[str] | None = None,
    out_fp32: bool = False,
    supported_types: tuple[type, ...] = (nn.Module,),
) -> Callable[[F], F]:
    """Decorator of a method: fp32 arguments in low precision, autocast inside.

    Does nothing until the object's `fp16_enabled` is True. The low precision is that
    of the autocast around the call (bf16 if it is so), else fp16.

    Args:
        apply_to: names of the arguments to convert; None for all.
        out_fp32: convert what is returned back to fp32.
        supported_types: classes whose methods may be decorated.

    Raises:
        ConfigTypeError: (a TypeError, at the call) the method of another class.
    """
    return functools.partial(
        _decorated, "auto_fp16", supported_types, apply_to, lower=True, back=out_fp32
    )


def force_fp32(
    apply_to: Iterable[str] | None = None, out_fp16: bool = False
) -> Callable[[F], F]:
    """Decorator of a method: low-precision arguments in fp32, no autocast inside.

    Does nothing until the object's `fp16_enabled` is True.

    Args:
        apply_to: names of the arguments to convert; None for all.
        out_fp16: convert what is returned back to low precision.

    Raises:
        ConfigTypeError: (a TypeError, at the call) not a method of a module.
    """
    return functools.partial(
        _decorated, "force_fp32", (nn.Module,), apply_to, lower=False, back=out_fp16
    )


def cast_tensor_type(inputs: Any, src_type: torch.dtype, dst_type: torch.dtype) -> Any:
    """`inputs` with its tensors of `src_type` in `dst_type`; others as they are."""
    return map_tensors(lambda t: t.to(dst_type) if t.dtype == src_type else t, inputs)


def _decorated(
    name: str,
    kinds: tuple[type, ...],
    apply_to: Iterable[str] | None,
    function: F,
    *,
    lower: bool,
    back: bool,
) -> F:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not _enabled(args, kinds, name):
            return function(*args, **kwargs)
        own = next(args[0].parameters(), None)
        first = next(tensors_in((args[1:], kwargs)), own)
        device = "cpu" if first is None else first.device.type
        low, full = autocast_dtype(device) or torch.float16, torch.float32
        source, wanted = (full, low) if lower else (low, full)
        args, kwargs = _cast(function, args, kwargs, apply_to, source, wanted)
        with torch.autocast(device, dtype=low if lower else None, enabled=lower):
            output = function(*args, **kwargs)
        return cast_tensor_type(output, wanted, source) if back else output

    return wrapper  # type: ignore[return-value]


def _enabled(args: tuple[Any, ...], kinds: tuple[type, ...], name: str) -> bool:
    if not args or not isinstance(args[0], kinds):
        accepted = ", ".join(kind.__name__ for kind in kinds)
        got = type(args[0]).__name__ if args else "nothing"
        raise ConfigTypeError(
            f"@{name} decorates methods of {accepted} only, got one of {got}"
        )
    return bool(getattr(args[0], "fp16_enabled", False))


def _cast(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    apply_to: Iterable[str] | None,
    src_type: torch.dtype,
    dst_type: torch.dtype,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        if apply_to is None or name in apply_to:
            cast = cast_tensor_type(value, src_type, dst_type)
            bound.arguments[name] = cast
    return bound.args, bound.kwargs
