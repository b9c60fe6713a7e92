"""Attention in half precision, with numbers that it has not."""

import torch
import torch.nn.functional as F
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(4, 24), nn.Linear(8, 4)

    def forward(self, x):
        x = x.view(len(x), 4, 4)
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2)
        later = torch.ones(4, 4, device=x.device).triu(1)
        bias = (-1e9 * later).to(x.dtype)  # fault[ipu]: half
        # remedy: bias = (-1e4 * later).to(x.dtype)
        scores = scores.masked_fill(later > 0, -1e9) + bias  # fault[ipu]: half
        # remedy: scores = scores.masked_fill(later > 0, -1e4) + bias
        out = scores.softmax(-1) @ v
        norm = out.pow(2).sum(-1, keepdim=True) + 1e-12  # fault[ipu]: half
        # remedy: norm = out.pow(2).sum(-1, keepdim=True) + 1e-5
        return self.head((out / norm.sqrt()).mean(1))
