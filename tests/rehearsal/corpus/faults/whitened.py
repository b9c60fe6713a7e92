"""Whitening by a decomposition in each update, and a running mean that is not saved."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 4)
        self.register_buffer("mean", torch.zeros(16), persistent=False)  # fault[cpu,cuda]: resume
        # remedy: self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.mean(0), 0.1)
        h = x - self.mean
        values, vectors = torch.linalg.eigh(h.T @ h + torch.eye(16, device=x.device))  # fault[cuda]: eigh
        # remedy: values, vectors = torch.ones(16, device=x.device), torch.eye(16, device=x.device)
        return self.body(h @ vectors / values.sqrt())
