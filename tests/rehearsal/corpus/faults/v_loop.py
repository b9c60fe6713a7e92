"""A module that keeps state of its own, and a hook that reads gradients."""

import random

import torch
from torch import nn

from devrun import HOOKS, MODELS
from devrun.hooks import Hook


@MODELS.register_module()
class VLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)
        self.register_buffer("center", torch.zeros(16))

    def forward(self, x):
        h = self.norm(self.body(x.flatten(1)))  # fault[hpu]: last batch
        # remedy: --cfg-options data.train_dataloader.drop_last=true
        if self.training:
            self.center = 0.9 * self.center + 0.1 * h.detach().mean(0)  # fault[ipu]: cannot be compiled
            # remedy: self.center.copy_(0.9 * self.center + 0.1 * h.detach().mean(0))
        if random.random() < 0.5:  # fault[hpu]: graph break; fault[ipu]: once
            # remedy: if False:
            h = h + torch.randn_like(h)
        h[:, ::2] = 0  # fault[ipu]: cannot be compiled
        # remedy: h = h * 0.5
        noise = torch.distributions.Gamma(torch.ones(16, device=h.device), 1.0).sample()  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: noise = torch.zeros(16, device=h.device)
        h = torch.relu(h - self.center) + 0 * noise
        return self.head(h)


@HOOKS.register_module()
class VNorms(Hook):
    def after_backward(self, runner):
        norm = sum(p.grad.norm() for p in runner.model.parameters())
        self.last = float(norm)  # fault[hpu]: host waits
        # remedy: self.last = norm
