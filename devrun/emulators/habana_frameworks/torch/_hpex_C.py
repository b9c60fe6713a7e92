# ruff: noqa: N999 - the name in the SDK
"""Of the bridge's compiled module: what Python programs import of it."""

from __future__ import annotations

import torch
from torch import Tensor

from habana_frameworks._emulation.dispatch import one_launch
from habana_frameworks._emulation.lazy import flush


def fused_norm(grads: list[Tensor], max_norm: Tensor, norm_type: float) -> Tensor:
    """The norm of all `grads` together, which are scaled to `max_norm` in place.

    Only the L2 norm: ValueError for another.
    """
    if float(norm_type) != 2.0:
        raise ValueError(f"fused_norm has the L2 norm only, not {norm_type}")
    flush("fused_norm")
    with torch.no_grad(), one_launch():
        norms = [torch.linalg.vector_norm(grad) for grad in grads]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        scale = (max_norm.to(total.device) / (total + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(scale)
    return total
