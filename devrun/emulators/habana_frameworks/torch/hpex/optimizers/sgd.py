"""SGD as the SDK has it; the arithmetic is torch.optim.SGD's."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from habana_frameworks.torch.hpex.optimizers import common


class FusedSGD(Optimizer):
    """SGD with momentum, dampening, weight decay and Nesterov; `lr` is required."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0,
        weight_decay: float = 0,
        dampening: float = 0,
        nesterov: bool = False,
    ) -> None:
        common.refuse_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "dampening": dampening,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def step(self, closure: common.Closure | None = None) -> Any:
        """One update; returns what `closure` returned."""
        loss = common.evaluate(closure)
        for group in self.param_groups:
            found = common.pairs(group, "FusedSGD")
            momentum = group["momentum"]
            with common.fused():
                for parameter, gradient in found:
                    if group["weight_decay"]:
                        decay = group["weight_decay"]
                        gradient = gradient.add(parameter, alpha=decay)
                    if momentum:
                        gradient = self._with_momentum(parameter, gradient, group)
                    parameter.add_(gradient, alpha=-group["lr"])
        return loss

    def _with_momentum(
        self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor:
        state = self.state[parameter]
        buffer = state.get("momentum_buffer")
        if buffer is None:
            buffer = state["momentum_buffer"] = gradient.clone()
        else:
            buffer.mul_(group["momentum"])
            buffer.add_(gradient, alpha=1 - group["dampening"])
        if group["nesterov"]:
            return gradient.add(buffer, alpha=group["momentum"])
        result: torch.Tensor = buffer
        return result
