"""A choice by Gumbel softmax, whose temperature falls."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.route = nn.Linear(16, 3)
        self.parts = nn.ModuleList(nn.Linear(16, 4) for _ in range(3))
        self.heat = 2.0  # fault[cpu,hpu]: resume
        # remedy: self.register_buffer("heat", torch.tensor(2.0))

    def forward(self, x):
        if self.training:
            self.heat *= 0.9  # fault[ipu]: once
            # remedy[ipu]: pass
        share = F.softmax(self.route(x) / self.heat, dim=1)
        outs = torch.stack([part(x) for part in self.parts], 1)
        return (outs * share[:, :, None]).sum(1)
