"""Layers that take their sizes from the first batch."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.LazyConv1d(4, 3, padding=1), nn.LazyBatchNorm1d())
        self.out = nn.LazyLinear(4)

    def forward(self, x):
        return self.out(torch.relu(self.conv(x.unsqueeze(1))).flatten(1))
