"""Two views of each row, all similarities, and labels that are made on the device."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.net(x)

    def train_step(self, data, optimizer):
        x = data[0]
        a, b = (F.normalize(self(x + torch.randn_like(x)), dim=1) for _ in range(2))
        likeness = self.scale.exp() * a @ b.T
        labels = torch.arange(len(x), device=x.device)
        likeness = likeness.masked_fill(torch.eye(len(x), device=x.device).bool(), 0.0)
        loss = F.cross_entropy(likeness, labels)
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}
