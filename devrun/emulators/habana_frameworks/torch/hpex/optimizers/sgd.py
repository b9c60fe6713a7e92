"""SGD as the SDK has it; the arithmetic is torch.optim.SGD's."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from habana_frameworks._emulation.plans import Kernel
from habana_frameworks.torch.hpex.optimizers import common

KERNEL = Kernel("hpu::optimizer_sgd")


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
            if not group["momentum"]:
                self._run(found, [], group, group["dampening"])
                continue
            # A buffer begins as the gradient itself, which is not dampened then.
            new = [pair for pair in found if not self.state[pair[0]]]
            old = [pair for pair in found if self.state[pair[0]]]
            for parameter, _ in new:
                buffer = common.zeros_like(parameter)
                self.state[parameter]["momentum_buffer"] = buffer
            for pairs, dampening in ((new, 0.0), (old, group["dampening"])):
                buffers = [self.state[p]["momentum_buffer"] for p, _ in pairs]
                self._run(pairs, buffers, group, dampening)
        return loss

    @staticmethod
    def _run(
        pairs: list[tuple[Tensor, Tensor]],
        buffers: list[Tensor],
        group: dict[str, Any],
        dampening: float,
    ) -> None:
        if not pairs:
            return
        params, grads = map(list, zip(*pairs))
        update = functools.partial(_update, group=group, dampening=dampening)
        common.kernel(KERNEL, update, [params, grads, buffers], [params, buffers])


def _update(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    *,
    group: dict[str, Any],
    dampening: float,
) -> None:
    decay, momentum = group["weight_decay"], group["momentum"]
    for number, (parameter, gradient) in enumerate(zip(params, grads)):
        if decay:
            gradient = gradient.add(parameter, alpha=decay)
        if buffers:
            buffer = buffers[number]
            buffer.mul_(momentum).add_(gradient, alpha=1 - dampening)
            nesterov = group["nesterov"]
            gradient = gradient.add(buffer, alpha=momentum) if nesterov else buffer
        parameter.add_(gradient, alpha=-group["lr"])
