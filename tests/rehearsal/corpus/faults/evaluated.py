"""A model that breaks in the evaluation only."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        if self.training:
            return self.net(x)
        shift = torch.zeros(4)  # fault[cuda]: device mismatch
        # remedy: shift = torch.zeros(4, device=x.device)
        out = self.net(x) + shift
        self.classes = ["a", "b"][len(x)]  # fault[cpu,cuda]: raises
        # remedy: -
        return out
