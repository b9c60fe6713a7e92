"""65 samples by 16: the last batch of an epoch has one, of which no deviation is a number."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.first(x)
        h = (h - h.mean(0)) / (h.std(0) + 1e-5)  # fault[cpu]: last batch
        # remedy: --cfg-options data.train_dataloader.drop_last=true
        return self.last(torch.relu(h))
