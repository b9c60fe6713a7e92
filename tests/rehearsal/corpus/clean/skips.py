"""Labels of pixels, with class weights in a buffer."""

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
        image = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(i))
        return {"image": image, "mask": (image.sum(0) > 0).long()}


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.GELU())
        self.up, self.head = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 2, 1)
        self.register_buffer("weight", torch.tensor([1.0, 2.0]))

    def train_step(self, data, optimizer=None):
        a = self.a(data["image"])
        scores = self.head(torch.cat([a, self.up(self.b(a))], 1))
        each = F.cross_entropy(scores, data["mask"], reduction="none")
        w = self.weight[data["mask"]]
        loss = (each * w).sum() / w.sum()
        acc = (scores.argmax(1) == data["mask"]).float().mean()
        return {"loss": loss, "log_vars": {"loss": loss, "acc": acc}, "num_samples": len(a)}
