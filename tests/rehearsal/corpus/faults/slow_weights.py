"""Lookahead: a hook that keeps slow weights, and forgets them at a resume."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@HOOKS.register_module()
class Lookahead(Hook):
    slow = None

    def after_train_iter(self, runner):
        weights = list(runner.model.parameters())
        if self.slow is None:
            self.slow = [w.detach().clone() for w in weights]  # fault[cpu,hpu]: resume
        if runner.iter % 2:
            with torch.no_grad():
                for slow, weight in zip(self.slow, weights):
                    slow.lerp_(weight, 0.5)
                    weight.copy_(slow)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        return self.net(x)
