"""Losses that are weighed by those before them."""

from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
        self.losses = deque(maxlen=4)  # fault[cpu,cuda,hpu]: resume

    def train_step(self, data, optimizer):
        x, y = data
        loss = F.cross_entropy(self.net(x), y)
        self.losses.append(float(loss))  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy[ipu]: self.losses.append(1.0)
        loss = loss / max(self.losses)
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}
