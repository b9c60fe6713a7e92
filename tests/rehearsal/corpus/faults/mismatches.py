"""Tensors that stay on the host, and meet those of the device."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

SHIFT = torch.ones(8)  # fault[cuda]: device mismatch
# remedy: SHIFT = 1.0


@MODELS.register_module()
class Planted(nn.Module):
    STEP = torch.ones(8)  # fault[cuda]: device mismatch
    # remedy: STEP = 1.0

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)
        self.scale = torch.ones(16)  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("scale", torch.ones(16), persistent=False)
        self.parts = [torch.ones(8), torch.zeros(8)]  # fault[cuda]: device mismatch
        # remedy: self.parts = [1.0, 0.0]
        self.places = nn.Embedding(8, 8)

    def forward(self, x):
        h = self.first(x * self.scale) + SHIFT + self.STEP
        h = h * self.parts[0] + self.parts[1]
        h = h + torch.zeros(8)  # fault[cuda]: device mismatch
        # remedy: h = h + torch.zeros(8, device=h.device)
        places = torch.arange(len(x))  # fault[cuda]: device mismatch
        # remedy: places = torch.arange(len(x), device=x.device)
        h = h + self.places(places)
        noise = torch.randn(h.shape)  # fault[cuda]: device mismatch
        # remedy: noise = torch.randn_like(h)
        h = h + 0.01 * noise
        mask = torch.tril(torch.ones(8, 8))  # fault[cuda]: device mismatch
        # remedy: mask = torch.tril(torch.ones(8, 8, device=h.device))
        h = h @ mask
        rows = torch.from_numpy(torch.ones(8).numpy())  # fault[cuda]: device mismatch
        # remedy: rows = torch.ones(8, device=h.device)
        table = torch.eye(8)[h.argmax(1)]  # fault[cuda]: device mismatch
        # remedy: table = torch.eye(8, device=h.device)[h.argmax(1)]
        return self.last(h * rows + 0 * table.to(h.device))


@MODELS.register_module()
class Loss(nn.Module):
    def forward(self, x, y):
        weight = torch.tensor([1.0, 2.0, 1.0, 1.0])  # fault[cuda]: device mismatch
        # remedy: weight = torch.tensor([1.0, 2.0, 1.0, 1.0], device=x.device)
        return F.cross_entropy(x, y, weight)
