"""Samples with names, and noise from a stream of the data set's own."""

import torch
import torch.nn.functional as F
from torch import nn

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(torch.utils.data.Dataset):
    def __init__(self):
        self.stream = torch.Generator().manual_seed(1)  # fault[cpu,ipu]: resume
        # remedy: self.stream = None

    def __len__(self):
        return 32

    def __getitem__(self, index):
        noise = torch.randn(8, generator=self.stream)
        return {"x": noise, "y": index % 4, "name": f"image-{index}.png"}


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 4)

    def train_step(self, data, optimizer):
        loss = F.cross_entropy(self.body(data["x"]), data["y"])
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(data["x"])}
