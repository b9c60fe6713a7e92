"""LARS as the SDK has it: You et al., arXiv 1708.03888, over a momentum optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from habana_frameworks.torch.hpex.optimizers import common


class FusedResourceApplyMomentum(Optimizer):
    """`m = momentum * m - g; w = w + m`, for gradients that carry the learning rate.

    Meant to be wrapped in `FusedLars`, which scales the gradients.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
    ) -> None:
        common.refuse_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def step(self, closure: common.Closure | None = None) -> Any:
        """One update; returns what `closure` returned."""
        loss = common.evaluate(closure)
        for group in self.param_groups:
            found = common.pairs(group, "FusedResourceApplyMomentum")
            with common.fused():
                for parameter, gradient in found:
                    state = self.state[parameter]
                    buffer = state.get("momentum_buffer")
                    if buffer is None:
                        buffer = state["momentum_buffer"] = gradient.neg()
                    else:
                        buffer.mul_(group["momentum"]).sub_(gradient)
                    parameter.add_(buffer)
        return loss


class FusedLars(Optimizer):
    """Scales each gradient by the learning rate and the layer's trust ratio.

    `skip_mask` has a number for each parameter in order: where it is 1 the trust ratio
    and the weight decay apply, where it is 0 only the learning rate does.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        skip_mask: Any,
        eeta: float = 0.001,
        eps: float = 1e-8,
    ) -> None:
        self.optim = optimizer
        self.skip_mask = skip_mask
        self.eeta = eeta
        self.eps = eps
        defaults = {
            **optimizer.defaults,
            "skip_mask": skip_mask,
            "eeta": eeta,
            "eps": eps,
        }
        super().__init__(optimizer.param_groups, defaults)
        self.state = self.optim.state

    def zero_grad(self, set_to_none: bool = False) -> None:
        """The wrapped optimizer's."""
        self.optim.zero_grad(set_to_none)

    def step(self, closure: common.Closure | None = None) -> None:  # type: ignore[override]
        """Scale the gradients in place, then one update of the wrapped optimizer."""
        common.evaluate(closure)
        decays = [group.get("weight_decay", 0) for group in self.optim.param_groups]
        for group, decay in zip(self.optim.param_groups, decays):
            group["weight_decay"] = 0
            with common.fused():
                for parameter, used in zip(group["params"], self.skip_mask):
                    if parameter.grad is not None:
                        self._scale(parameter, group["lr"], decay, bool(used))
        self.optim.step()
        for group, decay in zip(self.optim.param_groups, decays):
            group["weight_decay"] = decay

    def _scale(
        self, parameter: torch.Tensor, lr: float, decay: float, adapt: bool
    ) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        if not adapt:
            gradient.mul_(lr)
            return
        weight, size = parameter.norm(2), gradient.norm(2)
        ratio = self.eeta * weight / (size + decay * weight + self.eps)
        usable = (weight > 0) & (size > 0)
        ratio = torch.where(usable, ratio, torch.ones_like(ratio))
        gradient.add_(parameter, alpha=decay).mul_(ratio).mul_(lr)
