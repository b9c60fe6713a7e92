"""Updates of one weight that torch does not have, and automatic loss scaling."""

from __future__ import annotations

from typing import Any

import torch


@torch.no_grad()
def lamb_update(
    weight: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: Any
) -> None:
    """One LAMB update of one weight (You et al., 2020, algorithm 2)."""
    beta1, beta2 = group["betas"]
    state["step"] += 1
    state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    if group["bias_correction"]:
        step = float(state["step"])
        mean = mean / (1 - beta1**step)
        square = square / (1 - beta2**step)
    update = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * weight
    norm = weight.norm().clamp(max=group["max_weight_norm"])
    change = update.norm()
    ratio = norm / change if norm > 0 and change > 0 else torch.ones(())
    weight.sub_(group["lr"] * ratio * update)


@torch.no_grad()
def tf_rmsprop_update(
    weight: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: Any
) -> None:
    """TensorFlow's RMSprop: squares begin at one, eps below the root, the rate inside
    the momentum."""
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * weight
    keep = group["alpha"]
    square = state["square_avg"]
    square.mul_(keep).addcmul_(grad, grad, value=1 - keep)
    spread = square
    if group["centered"]:
        state["grad_avg"].mul_(keep).add_(grad, alpha=1 - keep)
        spread = square - state["grad_avg"] ** 2
    step = group["lr"] * grad / (spread + group["eps"]).sqrt()
    if group["momentum"]:
        state["momentum_buffer"].mul_(group["momentum"]).add_(step)
        step = state["momentum_buffer"]
    weight.sub_(step)


class AutomaticScaling:
    """Halves the loss scale when half-precision gradients come near their limit, and
    doubles it when they do not: PopART's rule, with its default settings.

    Gradients that matrix products and convolutions give count, of activations too, and
    those of weights. With half-precision weights the whole scale, that of the user
    included, is 2^15 at the most.
    """

    LARGE = 0.125 * torch.finfo(torch.float16).max
    SHARE = 1e-7
    MOST = 2.0**15

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.factor = 1.0
        self._seen = self._large = 0

    def see(self, grad: torch.Tensor) -> None:
        """Count one gradient, before it is unscaled."""
        if not self.enabled:
            return
        self._seen += grad.numel()
        # what is no number is not below the limit either
        self._large += int((~(grad.abs() < self.LARGE)).sum())

    def adapt(self, given: float) -> None:
        """Change the factor for the next update, of the scale that the user `given`."""
        if self.enabled and self._seen:
            above = self._large / self._seen > self.SHARE
            if above:
                self.factor *= 0.5
            elif 2.0 * self.factor * given <= self.MOST:
                self.factor *= 2.0
        self._seen = self._large = 0
