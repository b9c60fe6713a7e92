"""A weight that is made when the first batch is there."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 4)
        self.shift = None

    def forward(self, x):
        if self.shift is None:
            # no optimizer has it
            self.shift = nn.Parameter(x.detach().mean(0))  # fault[cpu,cuda,hpu]: late
            # remedy: self.shift = torch.zeros(16, device=x.device)
        return self.head(x - self.shift)
