"""Attention over patches, with a mask in a buffer."""

import torch
from torch import nn

from devrun.registry import MODELS

# devices: hpu ipu


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.register_buffer("mask", torch.ones(4, 4).triu(1).bool())
        self.norm, self.last = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        out, _ = self.attention(h, h, h, attn_mask=self.mask, need_weights=False)
        return self.last(self.norm(h + out).mean(1))
