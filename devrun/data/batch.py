"""What a batch is made of: how many samples it holds, and how it moves to a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from devrun.step import MicroBatches
from devrun.tensors import INSIDE, replaced, tensors_in


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
