"""Clusters of prototypes: Sinkhorn without gradients, weights that are put back to length one, a warm-up."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS

# devices: cpu cuda hpu


@DATASETS.register_module()
class Views(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, i):
        x = torch.randn(16, generator=torch.Generator().manual_seed(i))
        return x + 0.1 * torch.randn(16), x + 0.1 * torch.randn(16)


@torch.no_grad()
def sinkhorn(scores, rounds=3):
    q = (scores / 0.5).exp().T
    q /= q.sum()
    k, n = q.shape
    for _ in range(rounds):
        q /= q.sum(1, keepdim=True)
        q /= k
        q /= q.sum(0, keepdim=True)
        q /= n
    return (q * n).T


@MODELS.register_module()
class SwAV(nn.Module):
    def __init__(self, prototypes=6):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
        self.prototypes = nn.Linear(8, prototypes, bias=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.last_loss = None

    def train_step(self, data, optimizer=None):
        a, b = data
        with torch.no_grad():
            self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))
        z = F.normalize(self.body(torch.cat([a, b])), dim=1)
        first, second = self.prototypes(z).chunk(2)
        loss = 0
        for goal, said in ((first, second), (second, first)):
            q = sinkhorn(goal.detach())
            loss = loss - (q * (said / 0.1).log_softmax(1)).sum(1).mean()
        self.seen += len(a)
        self.last_loss = loss.detach()
        warm = (self.seen / 100).clamp(max=1)
        return {"loss": loss * warm, "log_vars": {"warm": warm}, "num_samples": len(a)}


@HOOKS.register_module()
class Freeze(Hook):
    """Leaves the prototypes where they are in the first epoch."""

    def after_backward(self, runner):
        if runner.epoch < 1:
            for p in runner.model.prototypes.parameters():
                p.grad = None

    def after_train_iter(self, runner):
        if self.every_n_iters(runner, 50):
            runner.logger.info("loss %.3f", runner.model.last_loss.item())
