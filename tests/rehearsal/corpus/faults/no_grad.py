"""A forward pass that was written for an evaluation."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        features = torch.no_grad()(self.net)(x)  # fault[cpu,cuda,hpu,ipu]: no gradient
        # remedy: features = self.net(x)
        return features
