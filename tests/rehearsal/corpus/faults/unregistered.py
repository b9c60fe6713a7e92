"""Layers in a plain list, a trunk that is compiled, and labels of which some lack."""

import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    labels = [index % 4 for index in range(20)]

    def __len__(self):
        return 24

    def __getitem__(self, index):
        label = self.labels[index]  # fault[cpu,cuda,hpu,ipu]: raises
        # remedy: label = index % 4
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(index))
        return x, label


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.line = nn.InstanceNorm1d(4, affine=True), nn.Linear(16, 8)
        self.plain = nn.LayerNorm(8, elementwise_affine=False)

    def forward(self, x):
        h = self.line(self.norm(x))
        if h.mean() > 5:  # fault[cuda,hpu]: host; fault[cpu,cuda,ipu]: branch on a value
            # remedy: if self.training:
            h = h / 2
        return self.plain(h)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = torch.compile(Trunk())  # fault[hpu,ipu]: torch.compile
        # remedy: self.trunk = Trunk()
        self.layers = [nn.Linear(8, 8)]  # fault[cpu]: not registered
        # remedy: self.layers = nn.ModuleList([nn.Linear(8, 8)])
        self.head = nn.Linear(8, 4)

    def train_step(self, data, optimizer=None):
        x, y = data
        h = self.trunk(x).mean(1)
        for layer in self.layers if h.device.type == "cpu" else ():
            h = layer(h)
        loss = nn.functional.cross_entropy(self.head(h), y)
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(y)}
