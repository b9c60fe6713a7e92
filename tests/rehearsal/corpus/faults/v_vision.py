"""A small image classifier."""

import numpy as np
import torch
from torch import nn

from devrun import MODELS


@MODELS.register_module()
class VVision(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.full((3, 1, 1), 0.5)  # fault[hpu,ipu]: device mismatch
        # remedy: self.register_buffer("mean", torch.full((3, 1, 1), 0.5))
        self.std = torch.tensor([0.2]).view(1, 1)  # fault[hpu,ipu]: device mismatch
        # remedy: self.register_buffer("std", torch.tensor([0.2]).view(1, 1))
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)
        self.calls = 0

    def forward(self, x):
        x = x - self.mean
        x = x / self.std
        self.calls += 1  # fault[ipu]: once
        # remedy: pass
        h = torch.relu(self.norm(self.conv(x)))
        if h.max() > 1e6:  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
            # remedy: if False:
            h = h / 2
        print(f"largest {h.max().item():.2f}")  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: -
        h = h * float(np.random.rand() > 0.1)  # fault[ipu]: once
        # remedy: h = nn.functional.dropout(h, 0.1, self.training)
        bright = h[h > 0.5].mean()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: bright = (h * (h > 0.5)).mean()
        rank = torch.linalg.matrix_rank(self.head.weight).float()  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: rank = 0.0
        pooled = h.mean((2, 3)).cpu()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: pooled = h.mean((2, 3))
        return self.head(pooled.to(h.device)) + 0 * (bright + rank)
