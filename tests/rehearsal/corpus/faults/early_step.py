"""A GAN that updates its critic before the generator's loss went back through it."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16))
        self.dis = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def train_step(self, data, optimizer):
        real = data[0]
        fake = self.gen(torch.randn(len(real), 4, device=real.device))
        loss_g = -self.dis(fake).mean()
        loss_d = self.dis(fake.detach()).mean() - self.dis(real).mean()
        optimizer["dis"].zero_grad()
        loss_d.backward()
        optimizer["dis"].step()  # fault[cpu,cuda]: changed in place
        # remedy: loss_g = -self.dis(fake).mean()
        optimizer["gen"].zero_grad()
        loss_g.backward()
        optimizer["gen"].step()
        logs = {"d": loss_d.detach(), "g": loss_g.detach()}
        return {"loss": loss_g.detach(), "log_vars": logs, "num_samples": len(real)}
