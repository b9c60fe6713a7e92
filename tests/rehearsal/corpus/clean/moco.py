"""Contrastive pairs, a queue and a second encoder as buffers."""
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        x = torch.randn(16, generator=torch.Generator().manual_seed(i))
        return x, x * 1.1


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.slow = copy.deepcopy(self.f).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(32, 8), dim=1))

    def train_step(self, data, optimizer=None):
        a, b = data
        q = F.normalize(self.f(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.slow(b), dim=1)
        scores = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().T], 1) / 0.2
        loss = F.cross_entropy(scores, torch.zeros(len(a), dtype=torch.long, device=a.device))
        with torch.no_grad():
            self.queue.copy_(torch.cat([self.queue[len(a):], k]))
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(a)}
