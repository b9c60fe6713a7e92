"""A table of numbers in types that devices store otherwise."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS


@DATASETS.register_module()
class VTable(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        row = np.random.default_rng(index).normal(size=8)
        return row, np.float32(row.sum())  # fault[hpu]: float64
        # remedy: return row.astype(np.float32), np.float32(row.sum())


@MODELS.register_module()
class VTypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)
        self.register_buffer("scale", torch.ones(8, dtype=torch.float64))  # fault[hpu]: float64
        # remedy: self.register_buffer("scale", torch.ones(8))
        self.register_buffer("links", torch.eye(8).to_sparse())  # fault[hpu,ipu]: sparse
        # remedy: self.register_buffer("links", torch.eye(8))

    def forward(self, x):
        h = self.body(x.float()) * self.scale.float()
        h = (self.links @ h.t()).t()
        ids = torch.arange(8, device=h.device) * 3_000_000_000  # fault[hpu,ipu]: int64
        # remedy: ids = torch.arange(8, device=h.device)
        h = h.double().float()  # fault[hpu]: float64
        # remedy: h = h.float()
        if torch.allclose(h, torch.zeros_like(h)):  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
            # remedy: if False:
            h = h + 1
        return self.head(h).squeeze(1) + 0 * (ids % 7).sum()
