"""An autoencoder with a train_step in MMCV's words, and a last batch that is short."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS

# devices: cpu cuda


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, index):
        return torch.full((16,), index / 23)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(16, 4), nn.Linear(4, 16)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.up(self.norm(self.down(x)).relu())

    def train_step(self, data, optimizer):
        loss = F.mse_loss(self(data), data)
        return {"loss": loss, "log_vars": {"mse": loss.detach()}, "num_samples": len(data)}
