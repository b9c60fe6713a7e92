"""A deep net whose blocks are computed again, and whose width the first batch says."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from devrun.registry import MODELS


@MODELS.register_module()
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.LazyLinear(6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 8))
        self.out = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 2, 3))
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        h = self.first(x)
        h = checkpoint(self.block, h, use_reentrant=False)  # fault[ipu]: checkpoint
        # remedy: h = self.block(h)
        h = self.out(h).flatten(1)
        return self.last(F.normalize(h + torch.relu(h)))
