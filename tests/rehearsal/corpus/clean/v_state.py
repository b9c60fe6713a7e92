"""A running mean in a buffer, changed in place."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

# devices: hpu ipu


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(16, 8), nn.Linear(8, 4)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        h = self.body(x)
        if self.training:
            self.mean.copy_(0.9 * self.mean + 0.1 * h.detach().mean(0))
            self.seen.add_(1)
        return self.last(F.relu(h - self.mean))
