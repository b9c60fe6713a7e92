"""A head that is made when the first batch comes."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 8), None

    def forward(self, x):
        h = torch.tanh(self.body(x))
        if self.head is None:
            self.head = nn.Linear(8, 4)  # fault[cpu,ipu]: late parameter
        return self.head(h)
