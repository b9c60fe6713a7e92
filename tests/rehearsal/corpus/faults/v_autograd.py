"""Functions with a backward of their own, recomputation and hooks on tensors."""

import logging

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from devrun import MODELS

log = logging.getLogger(__name__)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad):
        small = np.clip(grad.numpy(), -1, 1)  # fault[hpu]: refused
        # remedy: return grad.clamp(-1, 1)
        return torch.from_numpy(small).to(grad.device)


@MODELS.register_module()
class VAutograd(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.mid = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        h = torch.relu(self.conv(x)).mean((2, 3))
        h = Round.apply(h * 16) / 16  # fault[ipu]: cannot be compiled
        # remedy[ipu]: h = torch.round(h * 16) / 16
        h = checkpoint(self.mid, h, use_reentrant=False)  # fault[ipu]: checkpoint
        # remedy[ipu]: h = self.mid(h)
        if h.requires_grad:
            h.register_hook(lambda grad: grad * 2)  # fault[ipu]: cannot be compiled
            # remedy[ipu]: -
        log.debug(f"features {h}")  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: -
        return self.head(h)
