"""Phones of waves, with layers that are dropped as in wav2vec, and hints of a teacher that a
closure hides."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS

PHONES = 5


@DATASETS.register_module()
class Phones(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        steps = torch.arange(12.0)[:, None] * torch.arange(1.0, 9.0)
        return torch.sin(steps * (1 + i % PHONES) / 9), i % PHONES


def distance_to(teacher):
    def distance(h, x):
        with torch.no_grad():
            goal = teacher(x)
        return F.mse_loss(h, goal)

    return distance


@MODELS.register_module()
class Listener(nn.Module):
    def __init__(self, width=8, depth=3, drop=0.1, balance=(1.0, 1.0, 2.0, 1.0, 1.0)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, PHONES)
        self.drop, self.balance = drop, list(balance)
        teacher = nn.Linear(width, width)  # fault[cuda,hpu,ipu]: device mismatch
        # remedy: self.teacher = teacher = nn.Linear(width, width).requires_grad_(False)
        teacher.requires_grad_(False)
        self.distance = distance_to(teacher)

    def encoded(self, x):
        for layer in self.layers:
            if self.training and torch.rand([]) < self.drop:  # fault[hpu]: graph break; fault[ipu]: cannot be compiled
                # remedy: if False:
                continue
            x = x + torch.relu(layer(x))
        return x

    def forward(self, x, phone):
        h = self.encoded(x)
        # as in scripts that are older than torch.full(..., device=)
        shift = torch.FloatTensor(x.shape[-1]).fill_(0.1)  # fault[cuda,hpu,ipu]: device mismatch
        # remedy: shift = torch.full(x.shape[-1:], 0.1, device=x.device)
        h = self.moved(h, shift)
        weight = torch.tensor(self.balance, device=x.device)  # fault[cuda]: host sync
        # remedy: weight = 1 + torch.zeros(PHONES, device=x.device)
        loss = (F.cross_entropy(self.head(h.mean(1)), phone, reduction="none") * weight[phone]).mean()
        loss = loss + 0.1 * self.distance(h, x)
        return {"loss": loss}

    def moved(self, x, by):
        return x + by
