"""Embeddings that are pulled together and pushed apart, with the hardest pairs."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 8)
        self.register_buffer("centers", torch.randn(4, 8))

    def train_step(self, data, optimizer):
        x, y = data
        z = F.normalize(self.body(x), dim=1)
        far = torch.cdist(z, z, p=1.0)  # fault[hpu]: on the host
        # remedy: far = (z[:, None] - z).abs().sum(2)
        same = y[:, None] == y
        if same.sum() == len(y):  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
            # remedy: if False:
            same = ~same
        near = far[same].mean()  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy: near = (far * same).sum() / same.sum()
        median = far.flatten().nanmedian()  # fault[hpu]: host; fault[ipu]: cannot be compiled
        # remedy: median = far.mean()
        kinds, counts = y.unique(return_counts=True)  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy: kinds, counts = y, torch.ones_like(y)
        share = counts.float() / counts.sum()
        with torch.no_grad():
            for kind in range(4):
                mine = z[y == kind]  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
                # remedy: mine = z * (y == kind)[:, None]
                self.centers[kind] = 0.9 * self.centers[kind] + 0.1 * mine.sum(0) / 8
        pull = (z - self.centers[y]).norm(dim=1).mean()
        best, order = far.sort(dim=1)
        loss = near - 0.1 * median.clamp(max=1) + pull + 0 * best.mean() + 0 * share.sum()
        return {"loss": loss, "log_vars": {"loss": loss, "kinds": float(len(kinds))}, "num_samples": len(x)}
