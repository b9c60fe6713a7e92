"""A part of what a sigmoid gave is changed, which its gradient needs."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        h = torch.sigmoid(self.body(x))
        h[:, :4] *= 2.0  # fault[cpu,cuda,hpu,ipu]: changed in place
        # remedy: h = torch.cat([h[:, :4] * 2.0, h[:, 4:]], 1)
        return self.head(h)
