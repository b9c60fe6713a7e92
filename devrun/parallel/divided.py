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


def copyable(model: nn.Module) -> nn.Module:
    """`model`, or where it is divided, which cannot be copied, its bare weights."""
    return Bare(model) if is_divided(model) else model


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


def whole_state(model: nn.Module) -> dict[str, Any]:
    """Its `state_dict` as one process would have it; a collective where divided."""
    if not isinstance(model, Bare):
        return dict(model.state_dict())
    from devrun.parallel.sharding import whole

    order = model.orders.get
    return {name: whole(v, order(name)) for name, v in model.state_dict().items()}


def take_whole(model: nn.Module) -> None:
    """Let its `load_state_dict` take what `whole_state` gave."""
    if isinstance(model, Bare):
        from devrun.parallel.sharding import divide_what_is_loaded

        named = dict(model.named_parameters())
        orders: Any = {named[name]: order for name, order in model.orders.items()}
        divide_what_is_loaded(model, orders)


class Bare(nn.Module):
    """Weights and buffers of a divided model under its names, and nothing to call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.orders: dict[str, Tensor] = dict(getattr(model, "row_orders", {}))
        made: dict[int, nn.Parameter] = {}  # tied ones stay one
        for name, module in model.named_modules():
            place = self
            for part in name.split(".") if name else ():
                if part not in place._modules:
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)  # type: ignore[assignment]
            for key, param in module.named_parameters(recurse=False):
                own = nn.Parameter(param.detach(), param.requires_grad)
                place.register_parameter(key, made.setdefault(id(param), own))
            lasting = module._non_persistent_buffers_set
            for key, buffer in module.named_buffers(recurse=False):
                place.register_buffer(key, buffer, persistent=key not in lasting)
