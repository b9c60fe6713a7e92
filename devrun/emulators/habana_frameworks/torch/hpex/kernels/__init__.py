"""Kernels by name; each is composed of ordinary operators here."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["CustomSoftmax", "FusedSDPA", "PySDPA"]


class FusedSDPA:
    """Scaled dot product attention in one kernel."""

    @staticmethod
    def apply(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        softmax_mode: str = "None",
        recompute_mode: Any = None,
        *rest: Any,
    ) -> Tensor:
        """Attention; fewer key than query heads are repeated (grouped queries).

        `softmax_mode` and `recompute_mode` choose kernels on a Gaudi, not numbers.
        """
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(q.dtype)
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=q.dim() == 4 and q.size(1) != k.size(1),
        )


PySDPA = FusedSDPA
"""The same, of ordinary operators on a Gaudi as well."""


class CustomSoftmax:
    """Softmax over the last dimension; `flavor` chooses an approximation on a Gaudi."""

    @staticmethod
    def apply(input: Tensor, flavor: int) -> Tensor:
        """The exact softmax."""
        return torch.softmax(input, -1)
