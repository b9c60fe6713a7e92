"""Attention in half precision, with masks that are too large for it."""

import torch
from torch import nn

from devrun import MODELS


@MODELS.register_module()
class VHalf(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        mask = torch.ones_like(scores).tril().bool()  # fault[ipu]: tril
        # remedy: mask = torch.arange(8, device=x.device)[:, None] >= torch.arange(8, device=x.device)
        scores = scores.masked_fill(~mask, -1e9)  # fault[ipu]: half
        # remedy: scores = scores.masked_fill(~mask, -1e4)
        bias = (1 - mask.to(scores.dtype)) * -1e9  # fault[ipu]: half
        # remedy: bias = (1 - mask.to(scores.dtype)) * -1e4
        h = (scores + bias).softmax(-1) @ v
        return self.head(h.mean(1))
