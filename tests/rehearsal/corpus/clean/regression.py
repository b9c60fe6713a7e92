"""Two heads, losses that are weighed by what is learnt, and a loader that drops."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 8), nn.GELU())
        self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 1)
        self.weigh = nn.Parameter(torch.zeros(2))

    def forward(self, x, labels=None):
        h = self.body(x)
        return self.one(h), self.two(h)

    def train_step(self, data, optimizer):
        x, y = data
        logits, level = self(x)
        one, two = F.cross_entropy(logits, y), F.mse_loss(level[:, 0], y.float())
        s = self.weigh
        loss = one * torch.exp(-s[0]) + two * torch.exp(-s[1]) + s.sum()
        logs = {"one": one.detach(), "two": two.detach()}
        return {"loss": loss, "log_vars": logs, "num_samples": len(x)}
