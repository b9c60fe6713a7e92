"""Images of twice the size, with too few channels for PixelShuffle."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Photos(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        large = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(index))
        return F.avg_pool2d(large, 2), large


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.body = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
        self.up = nn.Sequential(nn.Conv2d(12, 10, 3, padding=1), nn.PixelShuffle(2))
        self.colour = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.eyes = [nn.Conv2d(3, 4, 3).requires_grad_(False)]  # fault[cuda]: device mismatch
        # remedy: self.eyes = nn.ModuleList([nn.Conv2d(3, 4, 3).requires_grad_(False)])

    def enlarge(self, x):
        h = self.first(x)
        h = h + self.body(h.relu())
        return self.up(h)  # fault[cpu,cuda]: raises
        # remedy: return self.up[1](self.up[0](h)[:, :1].repeat(1, 12, 1, 1))

    def perceived(self, a, b):
        return F.l1_loss(self.eyes[0](a), self.eyes[0](b))

    def tint(self, image):
        mean = image.mean((2, 3))
        return self.colour(mean).mean()

    def psnr(self, a, b):
        return -10 * math.log10(F.mse_loss(a, b).detach())  # fault[cuda]: host sync
        # remedy: return -10 * torch.log10(F.mse_loss(a, b).detach())

    def train_step(self, data, optimizer):
        small, large = data
        out = self.enlarge(small)
        loss = F.l1_loss(out, large) + self.perceived(out, large) + 0.1 * self.tint(out)
        logs = {"loss": loss.detach(), "psnr": self.psnr(out, large)}
        return {"loss": loss, "log_vars": logs, "num_samples": len(small)}
