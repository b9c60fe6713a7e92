"""A state that goes on at a resume, and one that no update depends on."""
# devices: cpu cuda hpu

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __init__(self):
        self.names = [f"{number:03d}" for number in range(24)]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        number = int(self.names[index])
        x = torch.randn(16, generator=torch.Generator().manual_seed(number))
        return x + float(np.random.rand() < 0.5), number % 4


@HOOKS.register_module()
class Warm(Hook):
    scale = 0.1
    last = ()

    def before_train_iter(self, runner):
        self.scale = min(1.0, self.scale * 1.5)
        for group in runner.optimizer.param_groups:
            group["lr"] = 0.01 * self.scale

    def after_train_iter(self, runner):
        self.last = [*self.last, runner.iter][-4:]

    def state_dict(self):
        return {"scale": self.scale}

    def load_state_dict(self, state):
        self.scale = state["scale"]


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.net(x) / (1 + 0.1 * self.seen)
