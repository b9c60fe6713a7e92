"""Small weights are taken out step by step while training goes on."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


class LowRank(nn.Module):
    """A layer, and a product of two thin matrices that is added to it."""

    def __init__(self, inputs, outputs, rank=4):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.down = nn.Parameter(torch.randn(inputs, rank) * 0.02)
        self.up = torch.zeros(rank, outputs, requires_grad=True)  # fault[cpu]: not registered; fault[cuda]: device mismatch
        # remedy: self.up = nn.Parameter(torch.zeros(rank, outputs))

    def forward(self, x):
        return self.base(x) + x @ self.down @ self.up


@MODELS.register_module()
class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(LowRank(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.layers(x))


@HOOKS.register_module()
class Pruning(Hook):
    def __init__(self, final=0.8, interval=3):
        self.final, self.interval = final, interval
        self.masks = {}  # fault[cpu,cuda]: resume
        self.share = 0.0  # fault[cpu,cuda]: resume

    def after_train_iter(self, runner):
        weights = {n: p for n, p in runner.model.named_parameters() if "base" in n and p.dim() == 2}
        if self.every_n_iters(runner, self.interval):
            self.share += (self.final - self.share) * 0.5
            for name, p in weights.items():
                size = p.detach().abs().flatten()
                threshold = size.kthvalue(max(1, int(self.share * p.numel()))).values
                self.masks[name] = (p.detach().abs() > threshold).float()
        with torch.no_grad():
            for name, mask in self.masks.items():
                weights[name].mul_(mask)
        zeros = sum((p == 0).sum() for p in weights.values())
        runner.log_buffer.update({"zeros": zeros.item()})  # fault[cuda]: host sync
        # remedy: runner.log_buffer.update({"zeros": zeros})
