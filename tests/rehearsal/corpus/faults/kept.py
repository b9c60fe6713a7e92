"""What a layer gave is kept, with its graph."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)
        self.seen, self.features = [], []

    def forward(self, x):
        h = torch.relu(self.first(x))
        if self.training:
            self.seen.append(h)  # fault[cpu,cuda,hpu]: kept graph
            # remedy: self.seen[:] = [h.detach()]
            self.features.append(h.detach())  # fault[cpu,cuda,hpu]: kept tensors
            # remedy: self.features[:] = [h.detach()]
        return self.last(h)
