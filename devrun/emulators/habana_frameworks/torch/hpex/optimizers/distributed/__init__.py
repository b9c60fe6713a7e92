"""Optimizers in the form that torch's distributed optimizers drive."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from habana_frameworks.torch.hpex import optimizers

__all__ = ["FusedAdamW"]


class FusedAdamW:
    """AdamW that is handed its gradients: `step(gradients)`, one for each parameter."""

    def __init__(
        self,
        params: list[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        _allow_empty_param_list: bool = False,
        moments_dtype: Any = None,
    ) -> None:
        if not params and not _allow_empty_param_list:
            raise ValueError("optimizer got an empty parameter list")
        stand_in = params or [torch.empty(0)]
        self._inner = optimizers.FusedAdamW(
            stand_in, lr, betas, eps, weight_decay, moments_dtype=moments_dtype
        )
        self.param_group = self._inner.param_groups[0]
        self.state = self._inner.state

    def step(self, gradients: list[Tensor | None]) -> None:
        """One update; ValueError unless there is an entry for each parameter."""
        params = self.param_group["params"]
        if len(params) != len(gradients):
            raise ValueError(
                f"{len(gradients)} gradients were given for {len(params)} parameters"
            )
        before = [parameter.grad for parameter in params]
        for parameter, gradient in zip(params, gradients):
            parameter.grad = gradient
        try:
            self._inner.step()
        finally:
            for parameter, gradient in zip(params, before):
                parameter.grad = gradient
