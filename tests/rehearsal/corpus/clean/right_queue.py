"""A queue of negatives, positions and an average, kept as they should be."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS

# devices: cpu cuda


@DATASETS.register_module()
class Own(Dataset):
    def __init__(self):
        self.reads, self.cache = 0, {}

    def __len__(self):
        return 25

    def __getitem__(self, index):
        self.reads += 1
        try:
            return self.cache[index]
        except KeyError:
            x = torch.randn(16, generator=torch.Generator().manual_seed(index))
            self.cache[index] = x, index % 4
        return self.cache[index]


class Meter:
    def __init__(self):
        self.total, self.count = None, 0

    def update(self, value):
        value = value.detach()
        self.total = value if self.total is None else self.total + value
        self.count += 1


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8))
        self.slow = copy.deepcopy(self.net).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(12, 8))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))
        self.head = nn.Linear(8, 4)
        self.meter = Meter()
        self.masks = {}

    def mask(self, size, device):
        if size not in self.masks:
            self.masks[size] = torch.eye(size, dtype=torch.bool, device=device)
        return self.masks[size]

    def train_step(self, data, optimizer=None):
        x, y = data
        z = F.normalize(self.net(x), dim=1)
        with torch.no_grad():
            for mine, theirs in zip(self.slow.parameters(), self.net.parameters()):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
            other = F.normalize(self.slow(x), dim=1)
        near = (z @ other.T).masked_fill(self.mask(len(x), z.device), 0.0)
        far = z @ self.queue.clone().T
        loss = near.mean() + far.logsumexp(1).mean() + F.cross_entropy(self.head(z), y)
        with torch.no_grad():
            places = (self.at + torch.arange(len(x), device=x.device)) % 12
            self.queue[places] = other
            self.at.add_(len(x)).remainder_(12)
        self.meter.update(loss)
        try:
            z.view(3, -1, 7)
        except RuntimeError:
            pass
        right = (self.head(z).argmax(1) == y).float().mean().detach()
        return {"loss": loss, "log_vars": {"loss": loss.detach(), "acc": right}, "num_samples": len(x)}


@HOOKS.register_module()
class Logs(Hook):
    def __init__(self):
        self.rows = []

    def after_train_iter(self, runner):
        self.rows.append(runner.outputs["loss"])
        if len(self.rows) == 500:
            print(torch.stack(self.rows).mean().item())
            self.rows.clear()
