"""AdamW as the SDK has it: Loshchilov and Hutter, arXiv 1711.05101."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from habana_frameworks._emulation.plans import Kernel
from habana_frameworks.torch.hpex.optimizers import common

KERNEL = Kernel("hpu::optimizer_adamw")


class FusedAdamW(Optimizer):
    """Decoupled weight decay; `eps` is added before the bias is corrected.

    Other defaults than torch.optim.AdamW's: eps 1e-6 and no weight decay. The number
    of updates is kept in the parameter group, not by parameter.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        moments_dtype: Any = None,
    ) -> None:
        common.refuse_negative(lr=lr, eps=eps)
        for beta in betas:
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta: {beta} - should be in [0.0, 1.0[")
        self.moments_dtype = moments_dtype
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
        }
        super().__init__(params, defaults)

    def _dtypes(self, dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
        wanted = self.moments_dtype
        if wanted is None:
            return dtype, dtype
        first, second = (
            wanted if isinstance(wanted, (tuple, list)) else (wanted, wanted)
        )
        for kind in (first, second):
            if kind.itemsize == 1:
                raise NotImplementedError(
                    f"moments_dtype {kind}: float8 is not emulated; use bfloat16"
                )
        return first, second

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if "exp_avg" not in state:
            first, second = self._dtypes(parameter.dtype)
            state["step"] = 0
            state["exp_avg"] = common.zeros_like(parameter, dtype=first)
            state["exp_avg_sq"] = common.zeros_like(parameter, dtype=second)
        return state

    def step(self, closure: common.Closure | None = None) -> Any:
        """One update; returns what `closure` returned."""
        loss = common.evaluate(closure)
        for group in self.param_groups:
            found = common.pairs(group, "FusedAdamW")
            if not found:
                continue
            beta1, beta2 = group["betas"]
            count = common.next_step(group)
            size = group["lr"]
            if group.get("bias_correction", True):
                size *= math.sqrt(1.0 - beta2**count) / (1.0 - beta1**count)
            params, grads = map(list, zip(*found))
            states = [self._state_of(parameter) for parameter in params]
            m, v = ([s[k] for s in states] for k in ("exp_avg", "exp_avg_sq"))
            update = functools.partial(
                _update,
                betas=group["betas"],
                eps=group["eps"],
                decay=1.0 - group["weight_decay"] * group["lr"],
                size=size,
            )
            common.kernel(KERNEL, update, [params, grads, m, v], [params, m, v])
        return loss


def _update(
    params: list[Tensor],
    grads: list[Tensor],
    averages: list[Tensor],
    squares: list[Tensor],
    *,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    size: float,
) -> None:
    beta1, beta2 = betas
    lists = zip(params, grads, averages, squares)
    for parameter, gradient, m, v in lists:
        m.mul_(beta1).add_(gradient, alpha=1.0 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        parameter.mul_(decay)
        parameter.addcdiv_(m, v.sqrt().add_(eps), value=-size)
