"""Noise for as many samples as the config has in a batch."""

import torch
import torch.nn.functional as F
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 4)
        self.register_buffer("noise", 0.01 * torch.randn(12, 16))

    def forward(self, x):
        return self.body(x + self.noise)  # fault[cpu,ipu]: raises
        # remedy: return self.body(x + self.noise[: len(x)])
