"""Other tensors of the shapes of a model's weights, divided as those are.

Nothing here imports torch's DTensor: with whole weights there is nothing to pay for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from devrun.tensors import is_spread, local_of


def is_divided(model: nn.Module) -> bool:
    """Whether some of its weights are spread over processes, or with others."""
    return any(map(is_spread, model.parameters()))


def parts_here(tensors: Iterable[Any]) -> list[Tensor]:
    """What this process has of each."""
    return [local_of(tensor) for tensor in tensors]


def divided_alike(
    model: nn.Module,
) -> Callable[[str, Sequence[int], torch.dtype], Tensor | None] | None:
    """What `read_checkpoint` takes as `like`, for `model`; None where it is whole.

    Saved tensors that are named after a weight and have its shape, such as the moments
    of an optimizer, will be spread as it is. Not so where its rows have another order
    here than in the file.
    """
    orders = getattr(model, "row_orders", {})
    weights = {
        name: value
        for name, value in model.state_dict().items()
        if is_spread(value) and name not in orders
    }

    def like(key: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        own = next((weights[name] for name in key.split("/") if name in weights), None)
        if own is None or tuple(own.shape) != tuple(shape):
            return None
        return torch.empty_like(own, dtype=dtype)

    return like if weights else None


def whole_state(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """`state` of `model` as one process would have it; a collective where divided."""
    if not is_divided(model):
        return state
    from devrun.parallel.sharding import whole

    orders = getattr(model, "row_orders", {})
    return {name: whole(value, orders.get(name)) for name, value in state.items()}
