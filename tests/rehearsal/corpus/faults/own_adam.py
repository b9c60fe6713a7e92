"""A model that makes its own updates, with an optimizer that no checkpoint has."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
        self.mine = torch.optim.Adam(self.net.parameters())  # fault[cpu,hpu]: resume
        # remedy: self.mine = torch.optim.SGD(self.net.parameters(), 0.1)
        self.total = 0

    def train_step(self, data, optimizer=None):
        x, y = data
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.total = self.total + loss  # fault[cpu,hpu]: kept graph
        # remedy: self.total = self.total + loss.detach()
        self.mine.zero_grad()
        loss.backward()
        self.mine.step()
        loss = loss.detach()
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(y)}
