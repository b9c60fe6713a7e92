"""Adagrad as the SDK has it; the arithmetic is torch.optim.Adagrad's."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from habana_frameworks.torch.hpex.optimizers import common


class FusedAdagrad(Optimizer):
    """Adagrad whose learning rate is fixed when it is built.

    As in the SDK, changing `lr` in a group later has no effect: schedulers do nothing.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
    ) -> None:
        common.refuse_negative(
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
        )
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            group["fixed_lr"] = group["lr"]
            for parameter in group["params"]:
                start = torch.full_like(parameter, initial_accumulator_value)
                self.state[parameter]["sum"] = start.detach()

    def step(self, closure: common.Closure | None = None) -> Any:
        """One update; returns what `closure` returned."""
        loss = common.evaluate(closure)
        for group in self.param_groups:
            found = common.pairs(group, "FusedAdagrad")
            count = common.next_step(group)
            size = group["fixed_lr"] / (1 + (count - 1) * group["lr_decay"])
            with common.fused():
                for parameter, gradient in found:
                    if group["weight_decay"]:
                        decay = group["weight_decay"]
                        gradient = gradient.add(parameter, alpha=decay)
                    total = self.state[parameter]["sum"]
                    total.addcmul_(gradient, gradient)
                    scale = total.sqrt().add_(group["eps"])
                    parameter.addcdiv_(gradient, scale, value=-size)
        return loss
