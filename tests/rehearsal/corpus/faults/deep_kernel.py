"""A Gaussian process on learned features: the evidence of a low rank kernel, in half."""

import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, LOSSES, MODELS


@DATASETS.register_module()
class Curves(Dataset):
    def __init__(self, size=64):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(size, 5, generator=g)
        self.y = torch.sin(self.x.sum(1)) + 0.1 * torch.randn(size, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


@MODELS.register_module()
class Features(nn.Module):
    def __init__(self, rank=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, rank), nn.Tanh())

    def forward(self, x):
        return self.net(x)


@LOSSES.register_module()
class Evidence(nn.Module):
    """log p(y) of y ~ N(0, Z Z' + s I), through the small matrix s I + Z' Z."""

    def __init__(self, noise=0.5):
        super().__init__()
        self.noise = noise
        self.centre = 0.0  # fault[cpu,cuda]: resume
        # remedy: self.register_buffer("centre", torch.zeros(()))

    def forward(self, z, y):
        self.centre = 0.9 * self.centre + 0.1 * y.detach().mean()
        y = (y - self.centre)[:, None]
        with torch.autocast("cuda", dtype=torch.float16):  # fault[cpu]: hard-wired
            # remedy[cpu]: if True:
            small, projected = z.T @ z, z.T @ y
            spread = torch.linalg.slogdet(small + 1).logabsdet  # fault[cuda]: raises
            # remedy: spread = torch.linalg.slogdet(small.float() + 1).logabsdet
        inner = small.float() + self.noise * torch.eye(z.shape[1])  # fault[cuda]: device mismatch
        # remedy: inner = small.float() + self.noise * torch.eye(z.shape[1], device=z.device)
        root = torch.linalg.cholesky(inner)  # fault[cuda]: host sync
        # remedy: root = torch.linalg.cholesky_ex(inner).L
        solved = torch.cholesky_solve(projected.float(), root)
        fit = (y.square().sum() - (projected.float() * solved).sum()) / self.noise
        loss = fit + 2 * root.diagonal().log().sum() + 1e-3 * spread
        return 0.5 * loss / len(y)
