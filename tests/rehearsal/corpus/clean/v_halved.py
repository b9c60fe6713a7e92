"""Attention in half precision, whose mask has numbers within it."""

import torch
from torch import nn

from devrun.registry import MODELS

# devices: ipu


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.last = nn.Linear(16, 48), nn.Linear(16, 4)
        self.register_buffer("low", torch.full((1, 1), -1e4))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.t() / 4 + self.low.to(q.dtype) * 0
        return self.last(scores.softmax(-1) @ v)
