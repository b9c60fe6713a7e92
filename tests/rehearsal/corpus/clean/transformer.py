"""Attention and an encoder of torch's, with a mask that is made where it is used."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        h = self.inner(x[:, :, None])
        mask = torch.ones(16, 16, device=x.device).triu(1).bool()
        h = h + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return self.last(self.encoder(h).mean(1))
