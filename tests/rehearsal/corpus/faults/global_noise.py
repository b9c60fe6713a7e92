"""Augmentation from a generator of the whole file."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS

RNG = np.random.default_rng(0)  # fault[cpu,hpu,ipu]: resume
# remedy: RNG = np.random


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        if RNG.uniform() < 0.5:
            x = -x
        return x, index % 4


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        return self.net(x)
