"""A model in a config with keys that nobody knows."""

from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        return self.net(x)


@HOOKS.register_module()
class Own(Hook):
    def after_train_iteration(self, runner):
        pass
