"""Blocks that are computed again in the backward pass, and hooks of torch's."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from devrun.registry import MODELS


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.largest = 0.0

    def forward(self, x):
        h = self.up(x).relu()
        self.largest = h.max().item()  # fault[cuda]: .item()
        # remedy: self.largest = h.detach().max()
        return x + self.down(h)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(16, 4)
        self.last.register_full_backward_hook(self.look)
        self.norms = []

    def look(self, module, given, taken):
        self.norms.append(taken[0].norm().cpu())  # fault[cuda]: .cpu()
        # remedy: self.norms.append(taken[0].norm())

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        x.register_hook(self.watch) if x.requires_grad else None
        return self.last(x)

    def watch(self, grad):
        if grad.abs().max() > 1e9:  # fault[cuda]: host sync
            # remedy: if False:
            grad = grad / 2
        return grad
