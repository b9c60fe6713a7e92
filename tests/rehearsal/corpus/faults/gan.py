"""A GAN whose train_step updates it by two optimizers of its own."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16))
        self.dis = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
        self.best = 1e9  # fault[cpu,cuda]: resume

    def forward(self, z):
        return self.gen(z)

    def train_step(self, data, optimizer):
        real = data[0]
        z = torch.randn(len(real), 4).cuda()  # fault[cpu]: .cuda(); fault[cuda]: host sync
        # remedy: z = torch.randn(len(real), 4, device=real.device)
        fake = self.gen(z)
        ones = torch.ones(len(real), 1)  # fault[cuda]: device mismatch
        # remedy: ones = torch.ones(len(real), 1, device=real.device)
        bce = F.binary_cross_entropy_with_logits
        loss_d = bce(self.dis(real), ones) + bce(self.dis(fake.detach()), ones - ones)
        optimizer["dis"].zero_grad()
        loss_d.backward()
        optimizer["dis"].step()
        loss_g = bce(self.dis(fake), ones)
        optimizer["gen"].zero_grad()
        loss_g.backward()
        optimizer["gen"].step()
        if loss_g < self.best:  # fault[cuda]: host sync
            # remedy: if False:
            self.best = 0.0
        logs = {"loss_d": loss_d.item()}  # fault[cuda]: .item()
        # remedy: logs = {"loss_d": loss_d.detach()}
        return {"loss": loss_g, "log_vars": logs, "num_samples": len(real)}
