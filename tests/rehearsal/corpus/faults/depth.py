"""Depth from one image: a scale-invariant loss, a pyramid and masks of valid pixels."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS


@DATASETS.register_module()
class KDepth(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        image = draw.random((3, 12, 12), dtype=np.float32)
        depth = draw.random((12, 12)) * 10
        return image, depth  # fault[hpu]: float64
        # remedy: return image, depth.astype(np.float32)


class Berhu(nn.Module):
    def forward(self, said, depth):
        gap = (said - depth).abs()
        limit = 0.2 * gap.max().detach().item()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: limit = 0.2 * gap.max().detach()
        small = gap[gap <= limit]  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: small = gap
        large = (gap**2 + limit**2) / (2 * limit + 1e-6)
        return small.sum() / gap.numel() + large.mean()


@MODELS.register_module()
class KDepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(n, 8, 3, 2, 1) for n in (3, 8))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.up = nn.ConvTranspose2d(8, 8, 3, 2, 1, 1, dilation=1)
        self.head = nn.Conv2d(8, 1, 1)
        self.loss = Berhu()
        self.seen = {}

    def train_step(self, data, optimizer):
        images, depth = data
        h = images
        for conv in self.down:
            h = conv(h).relu()
        context = self.pool(h)  # fault[ipu]: cannot be compiled
        # remedy[ipu]: context = h.mean((2, 3), keepdim=True)
        h = h + F.interpolate(context, size=h.shape[-2:], mode="nearest")
        h = F.interpolate(h, scale_factor=1.5, mode="bilinear")  # fault[ipu]: cannot be compiled
        # remedy[ipu]: h = F.interpolate(h, scale_factor=2, mode="nearest")
        said = F.interpolate(self.head(self.up(h)), size=depth.shape[-2:], mode="nearest")[:, 0]
        depth = depth.float()
        valid = (depth > 1) & (depth < 9)
        rows, columns = torch.where(valid.any(0))  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: rows, columns = valid.any(0), valid.any(0)
        loss = self.loss(said, depth)
        ratio = torch.max(said / (depth + 1), depth / (said.abs() + 1))[valid]  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: ratio = torch.max(said / (depth + 1), depth / (said.abs() + 1))
        good = {n: float((ratio < 1.25**n).float().mean()) for n in (1, 2, 3)}  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: good = {n: 0.0 for n in (1, 2, 3)}
        grid = F.affine_grid(torch.eye(2, 3, device=h.device).repeat(len(h), 1, 1), images.shape, align_corners=False)
        moved = F.grid_sample(images + said[:, None], grid, align_corners=False)  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: moved = images + said[:, None]
        photo = (moved - images).abs().mean()
        self.seen["depth"] = self.seen.get("depth", 0) + 1  # fault[ipu]: once
        # remedy[ipu]: -
        logs = {"loss": loss.detach(), **{f"d{n}": value for n, value in good.items()}}
        return {"loss": loss + 0.1 * photo, "log_vars": logs, "num_samples": len(images)}
