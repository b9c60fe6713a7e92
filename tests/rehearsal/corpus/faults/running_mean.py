"""Features less a running mean, which is an attribute."""

import torch
import torch.nn.functional as F
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 8)
        self.head = nn.Linear(8, 4)
        self.mean = torch.tensor(0.0)  # fault[cpu]: resume
        # remedy: self.register_buffer("mean", torch.tensor(0.0))

    def forward(self, x):
        h = F.relu(self.body(x))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean()  # fault[ipu]: once
            # remedy: pass
        return self.head(h - self.mean)
