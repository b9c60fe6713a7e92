"""Calls of torch that raise, with something in place of what they would have given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Tuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from devrun.probes import sites
from devrun.rehearsal.check.left_out import BENT, of_shape
from devrun.tensors import map_tensors, tensors_in

REFUSALS = (RuntimeError, TypeError, IndexError, ValueError)
_VALUES = ("__bool__", "__float__", "__int__", "__index__", "__len__", "__iter__")
_SHAPES = ("view", "reshape", "expand", "unflatten")
_INDEX = re.compile("ind(ex|ices)|[Ll]ong|int(eger|64)")
_NEEDS = re.compile(r"requires the (\w+) parameter")
"""Of a call that torch took without it before, as if it were false."""
_PRODUCTS = ("linear", "matmul", "mm", "bmm", "__matmul__")
Given = Tuple[Any, Any]
"""Arguments by place, and by name."""


class Mended(TorchFunctionMode):
    """Within, a call that raises at one of `lines` is tried with what it could take.

    Args:
        other: is told a line and what it raises, where that was not told before.

    Types are made equal, indices 0, and parts like the first one. Where nothing helps,
    it gives its first operand: the rest of the update is seen, and its loss still
    comes of the weights.
    """

    def __init__(self, other: Callable[[str, Exception], None]) -> None:
        super().__init__()
        self._other = other
        self.lines: dict[str, bool] = {}
        """Where the user's code raised, and whether that was told."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.lines:
            return func(*args, **kwargs)
        bent = any(hasattr(one, BENT) for one in tensors_in((args, kwargs)))
        try:
            made = func(*args, **kwargs)
        except REFUSALS as error:
            follows = error.__dict__["follows"] = bent and of_shape(error)
            site = sites.here(2)
            if site is None or site not in self.lines:
                raise
            if not (self.lines[site] or follows):
                self._other(site, error)
            made, bends = _instead(func, args, kwargs, str(error))
            bent = bent or bends
            if made is None:
                raise
        for one in tensors_in(made) if bent else ():
            setattr(one, BENT, True)
        return made


def _instead(func: Any, args: Any, kwargs: Any, said: str) -> tuple[Any, bool]:
    """What to go on with, and whether it has a shape that was not asked for."""
    name = getattr(func, "__name__", "")
    if func is torch.autograd.grad:  # one for each of its inputs
        inputs = args[1] if len(args) > 1 else kwargs["inputs"]
        return tuple(one * 0 for one in tensors_in(inputs)), False
    tried = _ways(args, kwargs, said), _bent(name, args, kwargs)
    for bends, ways in enumerate(tried):
        for given, named in ways:
            with suppress(*REFUSALS):
                return func(*given, **named), bool(bends)
    if name in ("view", "resize_"):
        with suppress(*REFUSALS):
            return args[0].reshape(*args[1:]), False
    return _first(name, args, kwargs), True


def _ways(args: Any, kwargs: Any, said: str) -> Iterator[Given]:
    """Other values to call it with, after it `said` why it takes not these."""
    if needed := _NEEDS.search(said):
        yield args, {**kwargs, needed[1]: False}
    if "bool tensor" in said:  # a mask was of bytes before
        byte = torch.uint8
        yield _each(lambda x: x.to(byte) if x.dtype is torch.bool else x, args, kwargs)
    floats = [one for one in tensors_in((args, kwargs)) if one.is_floating_point()]
    if floats:
        kind = next((one for one in floats if one.requires_grad), floats[0]).dtype
        yield _each(lambda x: x.to(kind) if x.is_floating_point() else x, args, kwargs)
        yield _each(lambda x: x.to(kind), args, kwargs)
    if "sorted" in said:
        yield _each(lambda x: x if x.dim() > 1 else x.sort(0, True)[0], args, kwargs)
    if _INDEX.search(said):
        yield _each(lambda x: x if x.is_floating_point() else _zeros(x), args, kwargs)
        if len(args) > 1:
            first, second, *rest = args
            yield (first, _each(_zeros, second), *rest), kwargs
            yield (_each(_zeros, first), second, *rest), kwargs


def _bent(name: str, args: Any, kwargs: Any) -> Iterator[Given]:
    """Other sizes and parts to call it with, of which comes another shape."""
    if name not in _SHAPES:  # as `k` of topk
        yield [1 if type(one) is int else one for one in args], kwargs
    parts = args[0] if args and isinstance(args[0], (list, tuple)) else ()
    if parts and isinstance(parts[0], Tensor):
        like = [one if one.shape == parts[0].shape else parts[0] for one in parts]
        yield (like, *args[1:]), kwargs


def _zeros(index: Tensor) -> Tensor:
    return index.long() * 0


def _each(change: Callable[[Tensor], Tensor], *values: Any) -> Any:
    return map_tensors(change, values if len(values) > 1 else values[0])


def _first(name: str, args: Any, kwargs: Any) -> Tensor | None:
    """What goes on without the call."""
    given = list(tensors_in((args, kwargs)))
    if not given or name in (*_VALUES, "item", "tolist", "numpy"):
        return None
    first = next((one for one in given if one.requires_grad), given[0])
    for one in given:  # each weight that it has still takes part
        if one.requires_grad:
            first = first + (one.sum() * 0).to(first.dtype)
    if name in _PRODUCTS and len(given) > 1:
        width = given[1].shape[0 if name == "linear" else -1]
        sizes = (*given[0].shape[:-1], width)
        return first.sum() * 0 + torch.zeros(sizes, device=first.device)
    if ("loss" in name or "entropy" in name) and first.is_floating_point():
        return first.abs().mean()
    return first
