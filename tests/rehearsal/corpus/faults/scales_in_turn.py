"""Scales that come in turn."""

import itertools

from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
        self.scales = itertools.cycle([0.5, 0.8, 1.0, 1.5, 2.0])  # fault[cpu,hpu]: resume
        # remedy: self.scales = itertools.repeat(1.0)

    def forward(self, x):
        return self.net(x * next(self.scales))  # fault[hpu]: graph break; fault[ipu]: once
        # remedy: return self.net(x)
