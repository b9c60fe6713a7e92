"""What `precision` and `loss_scale` of a policy mean on an eager device."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from devrun.config.numbers import is_finite
from devrun.devices.overflow import Overflows
from devrun.errors import ConfigError, nearest
from devrun.step import UpdatePolicy

AUTOCAST_DTYPES: Mapping[str, torch.dtype | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def autocast_for(
    precision: str, device_type: str
) -> contextlib.AbstractContextManager[Any] | None:
    """The context of a forward pass, enterable again and again; None for fp32.

    Raises:
        ConfigError: a precision that is not one of `AUTOCAST_DTYPES`.
    """
    if precision not in AUTOCAST_DTYPES:
        hint = nearest(precision, AUTOCAST_DTYPES)
        raise ConfigError(f"no precision {precision!r}; {hint}")
    dtype = AUTOCAST_DTYPES[precision]
    if dtype is None:
        return None
    return torch.autocast(device_type, dtype=dtype)


class LossScaler:
    """`torch.amp.GradScaler`, with a factor that may also stay fixed.

    A step that the scaler leaves out because scaled gradients overflowed is part of
    its search for a factor, not a sign of divergence; `overflows` counts them.
    """

    def __init__(
        self,
        device_type: str,
        arguments: Mapping[str, Any],
        fixed: float | None,
        overflows: Overflows,
    ) -> None:
        self.overflows = overflows
        self.grad_scaler = torch.amp.GradScaler(device_type, **arguments)
        self.fixed = fixed

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return self.grad_scaler.scale(loss)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.grad_scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update unless a gradient overflowed, then adapt the factor."""
        self.overflows.note(self.grad_scaler, optimizer)
        self.grad_scaler.step(optimizer)
        self.grad_scaler.update(self.fixed)


def loss_scaler_for(
    policy: UpdatePolicy, device_type: str, overflows: Overflows
) -> LossScaler | None:
    """The scaler that `policy` asks for: none unless its precision is fp16.

    Raises:
        ConfigError: a `loss_scale` that is neither a number above 0, `dynamic`, nor
            arguments that `torch.amp.GradScaler` accepts.
    """
    if policy.precision != "fp16":
        return None
    scale = policy.loss_scale
    if isinstance(scale, Mapping):
        arguments, fixed = dict(scale), None
    elif is_finite(scale) and scale > 0:
        arguments, fixed = {"init_scale": float(scale)}, float(scale)
    elif scale == "dynamic":
        arguments, fixed = {}, None
    else:
        raise ConfigError(
            "loss_scale must be a number above 0, 'dynamic' or a mapping of "
            f"GradScaler arguments, got {scale!r}"
        )
    try:
        return LossScaler(device_type, arguments, fixed, overflows)
    except (TypeError, AssertionError) as error:
        raise ConfigError(
            f"loss_scale {dict(arguments)!r} is not for GradScaler: {error}; accepted: "
            "init_scale, growth_factor, backoff_factor, growth_interval"
        ) from error
