"""A moving average of the weights in a hook, and counts in buffers."""

import copy

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS

# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return self.net(x)


@HOOKS.register_module()
class Average(Hook):
    def before_run(self, runner):
        self.model = copy.deepcopy(runner.model)

    def state_dict(self):
        return self.model.state_dict()

    def load_state_dict(self, state):
        self.model.load_state_dict(state)

    @torch.no_grad()
    def after_train_iter(self, runner):
        pairs = zip(self.model.parameters(), runner.model.parameters())
        for mine, other in pairs:
            mine.lerp_(other, 0.1)
        if self.every_n_iters(runner, 50):
            print(runner.outputs["loss"].item())
