"""Values that are chosen by torch.where and gather, not by branches."""

import torch
from torch import nn

from devrun.registry import MODELS

# devices: hpu ipu


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.body(x)
        h = torch.where(h.abs() > 3, h.sign() * 3, h)
        best = h.gather(1, h.argmax(1, keepdim=True))
        return self.last(h) + 0.1 * best
