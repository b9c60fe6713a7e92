"""Blocks that are left out by a generator of the model's own."""

import random

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 4)
        self.draw = random.Random(0)  # fault[cpu,hpu]: resume
        # remedy: self.draw = random

    def forward(self, x):
        for block in self.blocks:
            if self.draw.random() < 0.5:  # fault[ipu]: once; fault[hpu]: graph break
                # remedy: if True:
                x = x + torch.tanh(block(x))
        return self.head(x)
