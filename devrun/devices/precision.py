"""What `precision` and `loss_scale` of a policy mean on an eager device."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from devrun.devices.overflow import Overflows
from devrun.errors import ConfigError, UnsupportedFeatureError
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
        UnsupportedFeatureError: a precision that is not one of `AUTOCAST_DTYPES`.
    """
    if precision not in AUTOCAST_DTYPES:
        raise UnsupportedFeatureError(
            f"precision {precision!r} cannot run on device {device_type!r}; use one of "
            f"{', '.join(AUTOCAST_DTYPES)}",
            key="precision",
        )
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
        ConfigError: arguments that `torch.amp.GradScaler` does not know.
    """
    if policy.precision != "fp16":
        return None
    arguments, fixed = policy.scaler_arguments, policy.fixed_scale
    try:
        return LossScaler(device_type, arguments, fixed, overflows)
    except (TypeError, AssertionError) as error:
        raise ConfigError(
            f"loss_scale {dict(arguments)!r} is not for GradScaler: {error}; accepted: "
            "init_scale, growth_factor, backoff_factor, growth_interval"
        ) from error
