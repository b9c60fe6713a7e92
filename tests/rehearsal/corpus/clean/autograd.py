"""A function with a backward pass of its own, and gradients that are clipped."""

import torch
from torch import nn

from devrun.registry import MODELS

# devices: cpu cuda


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() < 3, g, torch.zeros_like(g))


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(Straight.apply(self.first(x)))
