"""Samples from a distribution by Hamiltonian Monte Carlo: no model, data or optimizer.

    python examples/hamiltonian_monte_carlo.py

Neal, "MCMC using Hamiltonian dynamics" (2011). Several chains move at a time; a step
follows the gradient of the log density for a while, then chance takes it or leaves it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from devrun import Hook, IterBasedRunner, Run
from devrun.models import StepFunction

MEAN = torch.tensor([1.0, -2.0])
COVARIANCE = torch.tensor([[1.0, 0.6], [0.6, 2.0]])


def energy(position: Tensor) -> Tensor:
    """Minus the log density of each chain, but for a constant."""
    away = position - MEAN.to(position.device)
    precision = torch.linalg.inv(COVARIANCE).to(position.device)
    distance: Tensor = (away @ precision * away).sum(-1)
    return 0.5 * distance


def force(position: Tensor) -> Tensor:
    position = position.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(energy(position).sum(), position)
    return -gradient


def step(
    number: int, position: Tensor, *, size: float = 0.25, leaps: int = 8
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Where each chain is next; draws depend on the number of the step alone."""
    draw = torch.Generator().manual_seed(number)
    momentum = torch.randn(position.shape, generator=draw).to(position.device)
    chance = torch.rand(len(position), generator=draw).to(position.device)
    moved, before = position, energy(position) + 0.5 * momentum.square().sum(-1)
    momentum = momentum + 0.5 * size * force(moved)
    for leap in range(leaps):
        moved = moved + size * momentum
        momentum = momentum + (0.5 if leap == leaps - 1 else 1) * size * force(moved)
    after = energy(moved) + 0.5 * momentum.square().sum(-1)
    taken = chance < torch.exp(before - after)
    position = torch.where(taken[:, None], moved, position)
    return {"position": position}, {"accepted": taken.float().mean()}


class MomentsHook(Hook):
    """Adds up where the chains were, after `burn_in` steps."""

    def __init__(self, burn_in: int) -> None:
        self.burn_in, self.seen = burn_in, 0
        self.sum, self.squares = torch.zeros(2), torch.zeros(2, 2)

    def after_train_iter(self, runner: Run) -> None:
        if runner.iter >= self.burn_in:
            at = runner.model.get_buffer("position").cpu()
            self.seen += len(at)
            self.sum += at.sum(0)
            self.squares += at.T @ at

    @property
    def mean(self) -> Tensor:
        return self.sum / self.seen

    @property
    def covariance(self) -> Tensor:
        return self.squares / self.seen - torch.outer(self.mean, self.mean)


def main(steps: int = 400, chains: int = 64, device: Any = "cpu") -> MomentsHook:
    """The moments of the samples."""
    model = StepFunction(step, position=torch.zeros(chains, 2))
    runner = IterBasedRunner(model, device=device, max_iters=steps, seed=0)
    moments = MomentsHook(burn_in=steps // 4)
    runner.register_hook(moments)
    text = {"interval": 100, "hooks": [{"type": "TextLoggerHook"}]}
    runner.register_training_hooks(log_config=text)
    runner.run()
    runner.close()
    return moments


if __name__ == "__main__":
    found = main()
    print("mean", found.mean, "of", MEAN)
    print("covariance", found.covariance, "of", COVARIANCE)
