"""65 samples by 16: the last batch of an epoch has one, which BatchNorm refuses."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(16, 8), nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        h = self.norm(self.first(x))  # fault[cpu]: last batch
        # remedy: --cfg-options data.train_dataloader.drop_last=true
        return self.last(torch.relu(h))
