"""A hook and a loss that keep what they saw."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
        self.spare = nn.Linear(16, 4)  # fault[cpu]: no gradient
        # remedy: self.spare = nn.Identity()
        self.seen = {}

    def forward(self, x):
        out = self.net(x)
        if self.training:
            self.seen[len(self.seen)] = out  # fault[cpu,cuda,hpu]: kept graph
            # remedy: self.seen[0] = out.detach()
        return out


@MODELS.register_module()
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = []

    def forward(self, x, y):
        loss = F.cross_entropy(x, y)
        self.each += [loss]  # fault[cpu,cuda,hpu]: kept graph
        # remedy: self.each = [loss.detach()]
        return loss
