"""Rows that come one after another, from a stream that says how many there are."""

import torch
from torch import nn
from torch.utils.data import IterableDataset, get_worker_info

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(IterableDataset):
    def __len__(self):
        return 30

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, len(self), step):
            generator = torch.Generator().manual_seed(index)
            yield torch.randn(16, generator=generator), index % 4


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        return self.net(x)
