"""A scale that was to be trained, and is no parameter."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 8), nn.ReLU())
        self.head = nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.ones(4)) * 0.5  # fault[cpu]: backward again; fault[cuda,hpu]: device mismatch
        # remedy: self.scale = nn.Parameter(torch.ones(4) * 0.5)

    def forward(self, x):
        h = self.encoder(x)
        return self.head(h) * self.scale
