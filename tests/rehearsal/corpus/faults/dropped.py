"""A tracker that a hook drops in the second half."""

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


class Tracker:
    def __init__(self):
        self.best = 1e9  # fault[cpu]: resume

    def see(self, value):
        if value < self.best:
            self.best = value


@HOOKS.register_module()
class Track(Hook):
    def __init__(self):
        self.trackers, self.count = [Tracker(), Tracker()], 0

    def after_train_iter(self, runner):
        for one in self.trackers:
            one.see(float(runner.outputs["loss"]))
        self.count += 1
        if self.count == 5:
            self.trackers.pop()
