"""The one walk over what batches and outputs are made of, and what goes by it.

Containers are lists, tuples, named tuples, sets, dicts and other mappings, dataclasses
and any object that keeps its parts in `__dict__`, however deep; everything else is a
leaf. What is changed gets a container of the same type; what is not stays the object
it was, and the caller's containers are never written to.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from devrun.step import MicroBatches

INSIDE: Final = object()
"""What a `visit` returns to have the parts of a value visited in its place."""

OPAQUE = (type, nn.Module, types.ModuleType, types.FunctionType, types.MethodType)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """`value` with `function(tensor)` in the place of each tensor."""
    if isinstance(value, Tensor):  # most often
        return function(value)
    return replaced(
        lambda part, _: function(part) if isinstance(part, Tensor) else INSIDE, value
    )


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in `value`, in order."""
    return (tensor for _, tensor in named_tensors(value))


def inside(value: Any) -> Iterable[Any]:
    """What a container, record or distribution holds; of all else, itself."""
    named = isinstance(value, Distribution) or dataclasses.is_dataclass(value)
    whole = getattr(value, "__dict__", value) if named else value
    parts = whole.values() if isinstance(whole, dict) else whole
    return parts if isinstance(whole, (dict, list, tuple, deque)) else [value]


def held(value: Any) -> list[Tensor]:
    """`value`, or what it holds where it is a container, or one of rows, of tensors."""
    rows = map(inside, inside(value))
    return [one for row in rows for one in row if isinstance(one, Tensor)]


def nbytes(tensor: Tensor) -> int:
    """What it takes, whatever its storage does; `Tensor.nbytes` of torch 2.1."""
    return tensor.numel() * tensor.element_size()


def is_spread(value: Any) -> bool:
    """Whether it is a `DTensor` of torch's, of which each process has a piece.

    By what it has, not by its class: to import that takes longer than to save.
    """
    return isinstance(value, Tensor) and hasattr(value, "placements")


def local_of(tensor: Any) -> Any:
    """What this process has of it."""
    return tensor.to_local() if is_spread(tensor) else tensor


def named_tensors(
    value: Any, path: str = "", _within: tuple[int, ...] = ()
) -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) of each tensor in `value`, such as `batch['image'][0]`."""
    if isinstance(value, Tensor):
        yield path, value
        return
    for label, _, part in _parts(value, _within):
        yield from named_tensors(part, path + label, (*_within, id(value)))


def replaced(
    visit: Callable[[Any, str], Any],
    value: Any,
    path: str = "",
    _within: tuple[int, ...] = (),
) -> Any:
    """`value` with `visit(part, path)` in the place of its parts.

    Args:
        visit: gives what takes the place of a part, or `INSIDE` to go on with the
            parts of that; a leaf for which it does stays as it is.
        path: the name of `value`; that of a part extends it.
    """
    found = visit(value, path)
    if found is not INSIDE:
        return found
    parts = _parts(value, _within)
    if not parts:
        return value
    within = (*_within, id(value))
    made = [replaced(visit, part, path + label, within) for label, _, part in parts]
    if all(new is old for new, (_, _, old) in zip(made, parts)):
        return value
    return _rebuilt(value, [key for _, key, _ in parts], made)


def _parts(value: Any, within: tuple[int, ...]) -> list[tuple[str, Any, Any]]:
    """(label, key, part) of a container; none for a leaf, or one that holds itself."""
    if value is None or isinstance(value, (str, bytes, int, float, Tensor)):
        return []
    if id(value) in within:
        return []
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{k}", k, v) for k, v in zip(value._fields, value)]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", index, part) for index, part in enumerate(value)]
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", key, part) for key, part in value.items()]
    if isinstance(value, OPAQUE):
        return []
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return [(f".{name}", name, getattr(value, name)) for name in names]
    own = getattr(value, "__dict__", {})
    return [(f".{name}", name, part) for name, part in own.items()]


def _rebuilt(value: Any, keys: list[Any], parts: list[Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*parts)
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(parts)
    if type(value) is dict:
        return dict(zip(keys, parts))
    made = copy.copy(value)
    for key, part in zip(keys, parts):
        if isinstance(value, Mapping):
            made[key] = part
        else:  # a frozen dataclass refuses plain assignment, also on a copy
            object.__setattr__(made, key, part)
    return made


def batch_size_of(batch: Any) -> int:
    """Dimension 0 of the first tensor that has one, however deep; 1 if there is none.

    The parts of `MicroBatches` are added up.
    """
    if isinstance(batch, MicroBatches):
        return sum(batch_size_of(part) for part in batch)
    sized = (tensor.shape[0] for tensor in tensors_in(batch) if tensor.dim())
    return next(sized, 1)


def to_device(
    batch: Any, device: torch.device | str, non_blocking: bool = False
) -> Any:
    """The batch with every tensor on `device`, in containers of the same types.

    An object with a `to` method of its own moves itself. With `non_blocking`, copies
    from pinned host memory overlap with compute; other copies could not, and one
    towards the host could be read before it is there.
    """

    def moved(part: Any, _: str) -> Any:
        if isinstance(part, Tensor):
            return part.to(device, non_blocking=non_blocking and part.is_pinned())
        move = getattr(part, "to", None)
        return move(device) if callable(move) else INSIDE

    return replaced(moved, batch)
