"""What a batch is made of: how many samples it holds, and how it moves to a device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from devrun.step import MicroBatches

__all__ = ["batch_size_of", "to_device"]


def batch_size_of(batch: Any) -> int:
    """Dimension 0 of the first tensor that has one, however deep; 1 if there is none.

    The parts of `MicroBatches` are added up.
    """
    if isinstance(batch, MicroBatches):
        return sum(batch_size_of(part) for part in batch)
    size = _first_size(batch)
    return 1 if size is None else size


def _first_size(batch: Any) -> int | None:
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else None
    parts: Iterable[Any] = ()
    if isinstance(batch, (tuple, list)):
        parts = batch
    elif isinstance(batch, Mapping):
        parts = batch.values()
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        parts = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    for part in parts:
        size = _first_size(part)
        if size is not None:
            return size
    return None


def to_device(
    batch: Any, device: torch.device | str, non_blocking: bool = False
) -> Any:
    """The batch with every tensor on `device`, in containers of the same types.

    Goes through tuples, named tuples, lists, mappings and dataclasses; an object with
    a `to` method of its own moves itself; anything else is passed on. The caller's
    containers are not changed. With `non_blocking`, copies from pinned host memory
    overlap with compute; other copies could not, and one towards the host could be
    read before it is there.
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=non_blocking and batch.is_pinned())
    if isinstance(batch, (str, bytes, int, float)) or batch is None:
        return batch
    move = getattr(batch, "to", None)
    if callable(move):
        return move(device)
    if isinstance(batch, (tuple, list)):
        parts = [to_device(part, device, non_blocking) for part in batch]
        if hasattr(batch, "_fields"):
            return type(batch)(*parts)
        return type(batch)(parts)
    if isinstance(batch, Mapping):
        return _moved_mapping(batch, device, non_blocking)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        moved = copy.copy(batch)
        for field in dataclasses.fields(batch):
            part = to_device(getattr(batch, field.name), device, non_blocking)
            # a frozen dataclass refuses plain assignment, also on a copy
            object.__setattr__(moved, field.name, part)
        return moved
    return batch


def _moved_mapping(
    batch: Mapping[Any, Any], device: torch.device | str, non_blocking: bool
) -> Any:
    parts = {key: to_device(part, device, non_blocking) for key, part in batch.items()}
    if type(batch) is dict:
        return parts
    moved: Any = copy.copy(batch)
    for key, part in parts.items():
        moved[key] = part
    return moved
