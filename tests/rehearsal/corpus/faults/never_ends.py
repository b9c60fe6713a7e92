"""A loop that waits for a value that never comes."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS

# check: --timeout 60


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        h = self.net(x)
        norm = h.norm().item()  # fault[cuda]: .item()
        # remedy: norm = 1.0
        while norm > -1:  # fault[cpu,cuda]: hangs
            # remedy: while norm > 99:
            norm = norm * 0.5
        return h


@HOOKS.register_module()
class Reads(Hook):
    def after_train_iter(self, runner):
        self.last = runner.outputs["loss"].item()  # fault[cuda]: .item()
        # remedy: self.last = runner.outputs["loss"].detach()
        torch.cuda.synchronize()  # fault[cpu]: torch.cuda.synchronize; fault[cuda]: host sync
        # remedy: -
