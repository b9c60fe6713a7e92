"""Rows whose collate function asks for a column that is not there."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, LOSSES, MODELS

ORDER = random.Random(4)  # fault[cpu,cuda]: resume
# remedy: ORDER = random


@DATASETS.register_module()
class Table(Dataset):
    columns = ["age", "pay", "city", "job"]

    def __len__(self):
        return 27

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return {name: torch.rand((), generator=draw) for name in self.columns}, index % 3

    def collate_fn(self, rows):
        names = ["age", "pay", "city", "work"]
        x = torch.stack([torch.stack([row[name] for name in names]) for row, _ in rows])  # fault[cpu,cuda]: raises
        # remedy: x = torch.stack([torch.stack([row[name] for name in self.columns]) for row, _ in rows])
        return x, torch.tensor([y for _, y in rows])


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 12), nn.ReLU())
        self.tower = nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12))
        self.head = nn.Linear(12, 3)
        self.centre = None  # fault[cpu,cuda]: resume
        # remedy: self.register_buffer("centre", torch.zeros(1, 12))

    def missing(self, x):
        return x.masked_fill(torch.rand(x.shape, device=x.device) < 0.1, 0.0)

    def centred(self, h):
        m = h.mean(0, keepdim=True)
        self.centre = m if self.centre is None else 0.5 * self.centre + 0.5 * m  # fault[cpu,cuda]: backward again
        # remedy: self.centre = 0.5 * self.centre + 0.5 * m.detach()
        return h - self.centre

    def forward(self, x):
        h = self.net(self.missing(x))
        h = h + self.tower(h) * ORDER.choice([0.5, 1.0])
        return self.head(self.centred(h))


@LOSSES.register_module()
class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = torch.eye(3) * 0.9 + 0.033  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("matrix", torch.eye(3) * 0.9 + 0.033)

    def target(self, y):
        return self.matrix[y]

    def hits(self, out, y):
        return sum(int(a) == int(b) for a, b in zip(out.argmax(1), y))  # fault[cuda]: int()
        # remedy: return (out.argmax(1) == y).sum()

    def forward(self, out, y):
        self.right = self.hits(out, y)
        return F.kl_div(out.log_softmax(1), self.target(y), reduction="batchmean")
