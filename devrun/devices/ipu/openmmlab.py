"""OpenMMLab's models turn values into numbers, which a compiled graph has not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from devrun.errors import ConfigTypeError


@contextmanager
def tensors_only(model: nn.Module) -> Iterator[None]:
    """Have `model` keep its losses and predictions as tensors, if it is OpenMMLab's.

    Those have `_parse_losses`, and their heads a `post_process` that makes lists of
    numbers. MMPose's have a `get_accuracy`, worked out by numpy: nothing is logged of
    it. Only inside this context, and only of these objects.
    """
    if not callable(getattr(model, "_parse_losses", None)):
        yield
        return
    changed: list[tuple[nn.Module, str]] = []
    methods: list[tuple[nn.Module, str, Callable[..., Any]]]
    methods = [(model, "_parse_losses", _parsed)]
    for head in model.modules():
        methods += [(head, "post_process", _kept), (head, "get_accuracy", _nothing)]
    for owner, name, method in methods:
        if callable(getattr(owner, name, None)) and name not in vars(owner):
            vars(owner)[name] = method
            changed.append((owner, name))
    try:
        yield
    finally:
        for owner, name in changed:
            del vars(owner)[name]


def _kept(predictions: Any) -> Any:
    return predictions


def _nothing(*_: Any, **__: Any) -> dict[str, Any]:
    return {}


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
