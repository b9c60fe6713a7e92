"""An encoder under no_grad, which was to be trained."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 8), nn.ReLU())  # fault[cpu]: no gradient
        # remedy: self.encoder = nn.Sequential(nn.Unflatten(1, (8, 2)), nn.AvgPool1d(2), nn.Flatten())
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        with torch.no_grad():
            h = self.encoder(x)
        return self.head(h)
