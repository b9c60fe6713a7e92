"""A backbone that is not trained, in eval mode, under a head that is."""

import torch
from torch import nn

from devrun.registry import MODELS

# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)).requires_grad_(False)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))

    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            h = self.body(x)
        return self.head(h.relu())
