"""LAMB as the SDK has it: You et al., arXiv 1904.00962, with a global clip first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from habana_frameworks.torch.hpex.optimizers import common


class FusedLamb(Optimizer):
    """Clips the global gradient norm to `max_grad_norm` itself, unless it is None.

    The trust ratio applies where weight decay is not zero, or with `use_lamb`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float | None = 1.0,
        use_lamb: bool = False,
        fused: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedLamb does not support the AMSGrad variant.")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = adam_w_mode
        self.set_grad_none = set_grad_none
        self.use_lamb = use_lamb
        self.fused = fused

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """As the constructor's `set_grad_none` says, unless told here."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    def step(self, closure: common.Closure | None = None) -> None:  # type: ignore[override]
        """One update; returns nothing, as in the SDK."""
        common.evaluate(closure)
        groups = [(g, common.pairs(g, "FusedLamb")) for g in self.param_groups]
        with common.fused():
            divisor = self._divisor([grad for _, found in groups for _, grad in found])
        for group, found in groups:
            count = common.next_step(group)
            with common.fused():
                for parameter, gradient in found:
                    if divisor is not None:
                        gradient = gradient / divisor
                    update = self._update(parameter, gradient, group, count)
                    self._apply(parameter, update, group)

    def _divisor(self, gradients: list[Tensor]) -> Tensor | None:
        limit = self.defaults["max_grad_norm"]
        if limit is None or not gradients:
            return None
        norms = torch.stack([g.norm(2) for g in gradients])
        divisor: Tensor = (norms.norm(2) / limit).clamp(min=1.0)
        return divisor

    def _update(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], count: int
    ) -> Tensor:
        state = self.state[parameter]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        beta1, beta2 = group["betas"]
        share = 1.0 - beta1 if group["grad_averaging"] else 1.0
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.mul_(beta1).add_(gradient, alpha=share)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        first = second = 1.0
        if group["bias_correction"]:
            first, second = 1.0 - beta1**count, 1.0 - beta2**count
        update: Tensor = (m / first) / ((v / second).sqrt() + group["eps"])
        if group["weight_decay"]:
            update = update.add(parameter, alpha=group["weight_decay"])
        return update

    def _apply(self, parameter: Tensor, update: Tensor, group: dict[str, Any]) -> None:
        if group["weight_decay"] or self.use_lamb:
            weight, size = parameter.norm(2), update.norm(2)
            usable = (weight > 0) & (size > 0)
            ratio = torch.where(usable, weight / size, torch.ones_like(weight))
            update = update * ratio
        parameter.add_(update, alpha=-group["lr"])
