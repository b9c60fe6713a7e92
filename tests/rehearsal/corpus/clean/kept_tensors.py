"""A mask that is made once, and features that are kept within a call."""
# devices: cpu ipu

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(4, 16), nn.Linear(16, 4)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.mask, self.features = None, []

    def forward(self, x):
        self.features = []
        h = self.embed(x.view(len(x), 4, 4))
        if self.mask is None or self.mask.shape[0] != h.shape[1]:
            self.mask = torch.full((4, 4), -1e4, device=x.device).triu(1)
        self.features.append(h)
        h = h + self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        self.last = h.mean(1) + sum(self.features).mean(1)
        return self.head(self.last)
