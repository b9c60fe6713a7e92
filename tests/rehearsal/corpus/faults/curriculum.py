"""A data set that makes its samples harder as it is read."""

import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __init__(self):
        self.read = 0  # fault[cpu,hpu,ipu]: resume

    def __len__(self):
        return 24

    def __getitem__(self, index):
        self.read += 1
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return x * (1 + self.read / 100), index % 4


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        return self.net(x)
