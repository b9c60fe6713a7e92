"""Channels that are weighed, and a skip over scales."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

# devices: hpu ipu


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, 2, 1)
        self.mid = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.gate = nn.Sequential(
            nn.Linear(8, 4), nn.SiLU(), nn.Linear(4, 8), nn.Sigmoid()
        )
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.last = nn.Linear(11, 4)

    def forward(self, x):
        h = F.gelu(self.down(x))
        h = self.mid(h) * self.gate(h.mean((2, 3)))[:, :, None, None]
        h = torch.cat([self.up(h), x], 1)
        return self.last(h.amax((2, 3)))
