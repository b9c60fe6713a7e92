"""Numbers of other types than the operators take."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        return draw.normal(size=16).astype("float32"), draw.integers(0, 4, 1)[0]


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 8), nn.Linear(8, 4)
        self.register_buffer("weights", torch.ones(4))
        self.places = nn.Parameter(torch.arange(8) / 8)

    def train_step(self, data, optimizer):
        x, y = data
        h = self.body(x) + self.places
        self.left, self.right, self.rest = h.chunk(2, 1)  # fault[cpu,cuda,hpu]: raises
        # remedy: self.left, self.right = (one.detach() for one in h.chunk(2, 1))
        self.twice = torch.cat([h, h]).detach() + h.detach()  # fault[cpu,cuda,hpu]: raises
        # remedy: self.twice = (h + h).detach()
        out = self.head(h)
        self.each = F.cross_entropy(out, y.int()).detach()  # fault[cpu,cuda,hpu]: raises
        # remedy: self.each = F.cross_entropy(out, y).detach()
        self.near = F.smooth_l1_loss(out.max(1), y.float()).detach()  # fault[cpu,cuda,hpu]: raises
        # remedy: self.near = F.smooth_l1_loss(out.max(1).values, y.float()).detach()
        loss = F.cross_entropy(out, y)
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}
