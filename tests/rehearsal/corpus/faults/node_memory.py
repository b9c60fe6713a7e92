"""A memory of nodes, as temporal graph networks have it, and a range that moves."""

import torch
from torch import nn

from devrun.registry import MODELS


class Range(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = self.high = 0.0  # fault[cpu,cuda,hpu]: resume
        # remedy: self.register_buffer("low", torch.zeros(())); self.register_buffer("high", torch.zeros(()))

    def forward(self, h):
        if self.training:
            self.low += 0.1 * (h.detach().amin() - self.low)
            self.high += 0.1 * (h.detach().amax() - self.high)
        return h.clamp(self.low, self.high) + h


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.out, self.range = nn.Linear(16, 8), nn.Linear(8, 4), Range()
        self.register_buffer("memory", torch.zeros(4, 8))

    def forward(self, x):
        h = self.range(self.net(x)) + self.memory.mean(0)
        if self.training:
            self.memory[:2] = h[:2]  # fault[cpu,cuda,hpu]: backward again
            # remedy: self.memory[:2] = h[:2].detach()
        return self.out(h)
