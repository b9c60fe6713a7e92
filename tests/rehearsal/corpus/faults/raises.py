"""A model that raises, in a training where more is wrong."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.first(x)
        if h.sum() > 1e9:  # fault[cuda]: host sync
            # remedy: if False:
            h = h / 2
        h = h.view(len(x), 3, 3)  # fault[cpu,cuda]: raises
        # remedy: h = h.view(len(x), 8)
        return self.last(h)


@HOOKS.register_module()
class Reads(Hook):
    def after_train_iter(self, runner):
        self.last = runner.outputs["loss"].item()  # fault[cuda]: .item()
        # remedy: self.last = runner.outputs["loss"].detach()
        torch.ones(1).cuda()  # fault[cpu]: .cuda(); fault[cuda]: host sync
        # remedy: -
