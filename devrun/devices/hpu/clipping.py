"""Clipping by the SDK's one kernel, where it does what was asked for."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from devrun.devices.gradients import Clip
from devrun.devices.hpu.sdk import SDK
from devrun.step import UpdatePolicy


def fused_clip(sdk: SDK, policy: UpdatePolicy) -> Clip | None:
    """`FusedClipNorm` for a plain L2 norm; None leaves clipping to torch."""
    options = dict(policy.grad_clip or {})
    limit = options.pop("max_norm", None)
    options.pop("foreach", None)
    if (
        float(options.pop("norm_type", 2)) != 2
        or limit is None
        or any(options.values())
    ):
        return None
    kernel: Any = None

    def clip(optimizer: Any) -> Tensor:
        nonlocal kernel
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if kernel is None:
            kernel = sdk.normalization.FusedClipNorm(params, limit)
        norm: Tensor = kernel.clip_norm(params)
        return norm.reshape(())

    return clip
