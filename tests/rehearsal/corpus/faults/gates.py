"""Gates that are changed where they stand."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.body = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        gate = self.gate(x).exp()
        body = torch.tanh(self.body(x))
        h = gate * body
        gate /= gate.sum(1, keepdim=True)  # fault[cpu,cuda,hpu]: changed in place
        # remedy: gate = gate / gate.sum(1, keepdim=True)
        return self.head(h + gate)
