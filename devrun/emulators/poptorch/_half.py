"""Products of half-precision tensors, summed in float32 as an IPU sums them.

The terms of a product (PopTorch: partials) are float32 on an IPU unless
`Options.Precision.setPartialsType` says otherwise, and the sum is rounded to half once.
Half-precision partials are not modelled: which sums are rounded when depends on how a
product is laid out over the tiles. CPU torch has no fast product of halves either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from poptorch._torch_private import (
    CPU_ATTENTION,
    TorchDispatchMode,
    leaves_of,
    pytree,
)

_aten = torch.ops.aten
_PRODUCTS = frozenset(
    {
        _aten.addbmm.default,
        _aten.addmm.default,
        _aten.addmv.default,
        _aten.baddbmm.default,
        _aten.bmm.default,
        _aten.convolution.default,
        _aten.convolution_backward.default,
        _aten.dot.default,
        _aten.mm.default,
        _aten.mv.default,
        *CPU_ATTENTION,
    }
)
_FLOAT = dict.fromkeys(CPU_ATTENTION[:1], (1,))
"""Results that stay float32: attention's logarithms of sums."""


_NO_KERNEL = ("not implemented for 'Half'", "expected scalar type Float but found Half")
"""What torch says where it has none of halves, or of halves with float32 weights."""


class FloatPartials(TorchDispatchMode):
    """Computes products of halves, forward and backward, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self._see: Callable[[torch.Tensor], None] | None = None

    @contextmanager
    def message(self, see: Callable[[torch.Tensor], None]) -> Iterator[None]:
        """Hand `see` what products give meanwhile: in a backward pass, gradients."""
        self._see = see
        try:
            yield
        finally:
            self._see = None

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Carry out one of PyTorch's operators."""
        kwargs = kwargs or {}
        if func not in _PRODUCTS or not any(map(_is_half, args)):
            try:
                return func(*args, **kwargs)
            except RuntimeError as error:
                if not any(said in str(error) for said in _NO_KERNEL):
                    raise
            return _in_float(func, args, kwargs)
        given, named = pytree.tree_map(_widened, (args, kwargs))
        result = func(*given, **named)
        if isinstance(result, torch.Tensor):
            return self._rounded(result)
        kept = _FLOAT.get(func, ())
        return tuple(
            value if place in kept or value is None else self._rounded(value)
            for place, value in enumerate(result)
        )

    def _rounded(self, value: torch.Tensor) -> torch.Tensor:
        half = value.half()
        if self._see is not None:
            self._see(half)
        return half


def _in_float(func: Any, args: Any, kwargs: Any) -> Any:
    """An operator that this torch's CPU has not in half, as 2.0 lacks many."""
    given, named = pytree.tree_map(_widened, (args, kwargs))
    result = func(*given, **named)
    if func.name().partition(".")[0].endswith("_"):  # in place
        for old, new in zip(leaves_of((args, kwargs)), leaves_of((given, named))):
            if _is_half(old):
                old.copy_(new)
    if isinstance(result, torch.Tensor):
        return args[0] if result is given[0] else result.half()
    first, *others = result  # statistics stay float32
    return (first.half(), *others)


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float16


def _widened(value: Any) -> Any:
    if value is torch.float16:  # the type of a gradient, as an argument
        return torch.float32
    return value.float() if _is_half(value) else value
