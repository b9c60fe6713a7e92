"""Fused optimizers, clipping, averaging and kernels, in plain arithmetic."""

from __future__ import annotations

from habana_frameworks.torch.hpex import (
    kernels,
    movingavrg,
    normalization,
    optimizers,
)

__all__ = ["kernels", "movingavrg", "normalization", "optimizers"]
