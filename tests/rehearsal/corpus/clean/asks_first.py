"""Asks for a device as most programs do, and keeps to it."""

import torch
from torch import nn

from devrun.registry import MODELS

device = "cuda" if torch.cuda.is_available() else "cpu"
# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
        self.kept = torch.ones(4).to(device)
        if torch.cuda.is_available():
            self.moved = torch.ones(4).cuda()

    def forward(self, x):
        x = x.to(device)
        out = self.net(x) * self.kept + torch.zeros(4, device=device)
        return out * self.moved if hasattr(self, "moved") else out
