"""Diffusion with a schedule in float32 buffers."""
import math

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
        return torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(i))


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.i, self.m, self.o = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.time = nn.Linear(16, 8)
        self.register_buffer("alphas", (1 - torch.linspace(1e-4, 0.02, 50)).cumprod(0))
        self.register_buffer("freqs", torch.exp(-math.log(1e4) * torch.arange(8) / 8), persistent=False)

    def train_step(self, data, optimizer=None):
        x = data
        t = torch.randint(0, 50, (len(x),), device=x.device)
        a = self.alphas[t][:, None, None, None]
        noise = torch.randn_like(x)
        ang = t.float()[:, None] * self.freqs
        emb = self.time(torch.cat([ang.sin(), ang.cos()], 1))[:, :, None, None]
        h = self.i(a.sqrt() * x + (1 - a).sqrt() * noise) + emb
        loss = F.mse_loss(self.o(self.m(h.relu()).relu()), noise)
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}
