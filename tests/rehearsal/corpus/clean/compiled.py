"""A part that the user compiles, and blocks that are computed again."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from devrun.registry import MODELS

# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.compile(nn.Linear(16, 8), backend="aot_eager")
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        h = checkpoint(self.middle, self.first(x), use_reentrant=False)
        return self.last(h)
