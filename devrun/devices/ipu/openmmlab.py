"""OpenMMLab's models turn log values into numbers, which a compiled graph has not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from devrun.errors import ConfigTypeError

_METHOD = "_parse_losses"


@contextmanager
def tensor_losses(model: nn.Module) -> Iterator[None]:
    """Have `model` keep its losses as tensors, if it has OpenMMLab's `_parse_losses`.

    Only inside this context, and only of this object.
    """
    if not callable(getattr(model, _METHOD, None)) or _METHOD in vars(model):
        yield
        return
    vars(model)[_METHOD] = _parsed
    try:
        yield
    finally:
        del vars(model)[_METHOD]


def _parsed(losses: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The sum of all losses, and the mean of each of them, as OpenMMLab has them."""
    log_vars: dict[str, Any] = {}
    for name, value in losses.items():
        if isinstance(value, Tensor):
            log_vars[name] = value.mean()
        elif isinstance(value, (list, tuple)):
            log_vars[name] = sum(part.mean() for part in value)
        elif isinstance(value, Mapping):
            log_vars.update(value)
        else:
            raise ConfigTypeError(
                f"loss {name!r} must be a tensor or a list of them, got {value!r}"
            )
    loss = sum(value for name, value in log_vars.items() if "loss" in name)
    return loss, {**log_vars, "loss": loss}
