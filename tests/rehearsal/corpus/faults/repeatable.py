"""Segments images, the same to the bit each time: what CUDA can do of that."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.scale = nn.Parameter(torch.ones(8))
        self.pad = nn.ReflectionPad2d(1)
        self.out = nn.Conv2d(8, 4, 3)

    def forward(self, x):
        h = F.relu(self.down(x)) * self.scale.cumsum(0)[:, None, None]  # fault[cuda]: cumsum
        # remedy: steps = torch.ones(8, 8, device=x.device).tril() @ self.scale
        # remedy+: h = F.relu(self.down(x)) * steps[:, None, None]
        #
        h = F.interpolate(h, size=x.shape[2:], mode="bicubic")  # fault[cuda]: interpolate
        # remedy: h = F.interpolate(h, size=x.shape[2:], mode="bilinear")
        return self.out(self.pad(h))  # fault[cuda]: refused: pad
        # remedy: return self.out(F.pad(h, (1, 1, 1, 1)))

    def train_step(self, data_batch, optimizer, **kwargs):
        x, y = data_batch
        pixels = (x.mean(1) > 0).long() + y[:, None, None] % 2
        loss = F.cross_entropy(self(x), pixels)  # fault[cuda]: cross_entropy
        # remedy: rows = self(x).flatten(2).transpose(1, 2).flatten(0, 1)
        # remedy+: loss = F.cross_entropy(rows, pixels.flatten())
        #
        return {"loss": loss, "log_vars": {"loss": loss.detach()}, "num_samples": len(x)}
