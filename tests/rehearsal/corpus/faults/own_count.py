"""A model that counts its updates in an attribute."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
        self.seen = 0  # fault[cpu,cuda]: resume
        # remedy: self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return self.net(x) * (1 + 0.1 * self.seen)
