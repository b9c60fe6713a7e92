"""A queue of negatives that an update changes in place, and a short last batch."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Pairs(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        base = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return base + 0.1 * torch.randn(16), base + 0.1 * torch.randn(16)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self, dim=8, size=32, momentum=0.99):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, dim))
        self.key = copy.deepcopy(self.query)  # fault[cpu]: no gradient
        # remedy: self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.queue = F.normalize(torch.randn(dim, size), dim=0)  # fault[cpu]: resume; fault[cuda]: device mismatch
        # remedy: self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))
        self.place = 0  # fault[cpu,cuda]: resume
        # remedy: self.register_buffer("place", torch.tensor(0))
        self.size, self.momentum = size, momentum

    @torch.no_grad()
    def follow(self):
        for slow, fast in zip(self.key.parameters(), self.query.parameters()):
            slow.data.mul_(self.momentum).add_(fast.data, alpha=1 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys):
        n = len(keys)
        self.queue[:, self.place : self.place + n] = keys.t()  # fault[cpu,cuda]: changed in place
        # remedy: self.queue = torch.cat([keys.t(), self.queue[:, n:]], 1)
        self.place = (self.place + n) % self.size

    def logits(self, q, k):
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue
        return torch.cat([positive, negative], 1) / 0.07

    def loss(self, logits):
        target = torch.zeros(len(logits), dtype=torch.long)  # fault[cuda]: device mismatch
        # remedy: target = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        return F.cross_entropy(logits, target)

    def train_step(self, data, optimizer):
        a, b = data
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.key(b), dim=1)
        logits = self.logits(q, k)
        self.enqueue(k)
        loss = self.loss(logits)
        return {"loss": loss, "log_vars": {"loss": loss.detach()}, "num_samples": len(a)}
