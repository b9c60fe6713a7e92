"""A GRU, and blocks that are computed again."""
# devices: cpu cuda hpu

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS

from torch.utils.checkpoint import checkpoint


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(i))
        return x, x.mean()


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(2))
        self.out = nn.Linear(16, 1)

    def train_step(self, data, optimizer=None):
        x, y = data
        h = self.rnn(x)[0][:, -1]
        for b in self.blocks:
            h = h + checkpoint(b, h, use_reentrant=False)
        loss = F.smooth_l1_loss(self.out(h).squeeze(1), y)
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}
