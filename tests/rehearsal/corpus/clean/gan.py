"""A GAN whose train_step updates it by two optimizers, as it should be."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16))
        self.dis = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, z):
        return self.gen(z)

    def train_step(self, data, optimizer):
        real = data[0]
        z = torch.randn(len(real), 4, device=real.device)
        fake = self.gen(z)
        ones = torch.ones(len(real), 1, device=real.device)
        bce = F.binary_cross_entropy_with_logits
        loss_d = bce(self.dis(real), ones) + bce(self.dis(fake.detach()), ones - ones)
        optimizer["dis"].zero_grad()
        loss_d.backward()
        optimizer["dis"].step()
        loss_g = bce(self.dis(fake), ones)
        optimizer["gen"].zero_grad()
        loss_g.backward()
        optimizer["gen"].step()
        logs = {"loss_d": loss_d.detach()}
        return {"loss": loss_g, "log_vars": logs, "num_samples": len(real)}
