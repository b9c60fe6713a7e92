"""Probabilities under autocast, compiled, with numbers that are read."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 1)

    def forward(self, x):
        out = self.net(x)
        print("forward")  # fault[cuda]: graph break
        # remedy: -
        return out


@MODELS.register_module()
class Loss(nn.Module):
    def forward(self, x, y):
        p, y = x.sigmoid(), y[:, None].clamp(max=1).float()
        return F.binary_cross_entropy(p, y)  # fault[cuda]: binary_cross_entropy
        # remedy: return F.binary_cross_entropy_with_logits(x, y)
