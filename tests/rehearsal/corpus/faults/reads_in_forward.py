"""A classifier whose forward reads what it computes, as code for the host does."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if g.sum() > 1e9:  # fault[cuda]: host sync
            # remedy: g = torch.where(g.sum() > 1e9, g / 2, g)
            # remedy+: if False:
            g = g / 2
        return g * 2


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)
        self.norm = 0.0

    def forward(self, x):
        h = self.first(x).relu()
        self.norm = h.norm().item()  # fault[cuda]: host sync
        # remedy: self.norm = h.detach().norm()
        if h.sum() > 1e9:  # fault[cuda]: host sync
            # remedy: h = torch.where(h.sum() > 1e9, h / 2, h)
            # remedy+: if False:
            h = h / 2
        kept = h[h > 1e9]  # fault[cuda]: x[mask]
        # remedy: kept = torch.where(h > 1e9, h, 0)
        text = f"{h.mean():.3f}"  # fault[cuda]: f-string
        # remedy: text = ""
        seen = h.detach().cpu()  # fault[cuda]: .cpu()
        # remedy: seen = h.detach()
        many = h.tolist()  # fault[cuda]: .tolist()
        # remedy: many = h
        ones = h.nonzero()  # fault[cuda]: nonzero
        # remedy: ones = h != 0
        hot = F.one_hot(h.argmax(1))  # fault[cuda]: one_hot
        # remedy: hot = F.one_hot(h.argmax(1), 8)
        two = torch.tensor([h.mean(), h.max()])  # fault[cuda]: torch.tensor of tensors
        # remedy: two = torch.stack([h.mean(), h.max()])
        part = h[: h.argmax()]  # fault[cuda]: host sync
        # remedy: part = h
        print("mean", h.mean())  # fault[cuda]: print
        # remedy: -
        return self.last(Twice.apply(h)) + 0 * (kept.sum() + two.sum() + hot.sum())
