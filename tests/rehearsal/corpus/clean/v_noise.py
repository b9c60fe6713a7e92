"""Noise that torch draws where the data is."""

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

    def forward(self, x):
        h = self.body(x)
        if self.training:
            h = h + 0.1 * torch.randn_like(h)
        return self.last(F.dropout(h, 0.1, self.training))
