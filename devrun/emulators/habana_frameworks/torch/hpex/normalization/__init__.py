"""Gradient clipping and RMS norm in one kernel."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from habana_frameworks._emulation.plans import Kernel
from habana_frameworks.torch.hpex.optimizers.common import kernel

KERNEL = Kernel("hpu::fused_clip_norm")
__all__ = ["FusedClipNorm", "FusedRMSNorm"]


class FusedClipNorm:
    """Clips gradients to `max_norm`, fixed here, of their common L2 norm."""

    def __init__(
        self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0
    ) -> None:
        if norm_type != 2.0:
            raise ValueError(f"norm_type {norm_type}: FusedClipNorm knows 2.0 only")
        first = next(iter(parameters), None)
        self.dtype = torch.float32 if first is None else first.dtype
        self.max_norm_t = torch.tensor([max_norm], dtype=self.dtype).to("hpu")
        self.norm_type = norm_type

    def clip_norm(self, parameters: Tensor | Iterable[Tensor]) -> Tensor:
        """Scale the gradients in place by min(1, max / (norm + 1e-6)); the norm.

        A host 0.0 where there is no gradient.
        """
        if isinstance(parameters, Tensor):
            parameters = [parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return torch.tensor(0.0)
        norm = torch.empty_like(self.max_norm_t).squeeze(0)
        lists = [gradients, [self.max_norm_t], [norm]]
        kernel(KERNEL, _clip, lists, [gradients, [norm]])
        return norm


def _clip(gradients: list[Tensor], limit: list[Tensor], total: list[Tensor]) -> None:
    (max_norm,), (norm,) = limit, total
    norms = torch.stack([g.norm(2).to(norm.dtype) for g in gradients])
    norm.copy_(norms.norm(2))
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0).squeeze(0)  # of any gradient
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))


class FusedRMSNorm:
    """Root mean square layer norm: Zhang and Sennrich, arXiv 1910.07467."""

    @staticmethod
    def apply(data_in: Tensor, gamma: Tensor, epsilon: float, *rest: object) -> Tensor:
        """`x / sqrt(mean(x^2) + eps) * gamma`, in float32 inside."""
        x = data_in.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
        return (x * gamma.float()).to(data_in.dtype)
