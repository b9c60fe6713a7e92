"""Messages by index_add."""
# devices: cpu cuda hpu

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"x": torch.randn(6, 5, generator=g), "e": torch.randint(6, (2, 10), generator=g), "y": torch.randn((), generator=g)}


@COLLATE_FUNCTIONS.register_module()
def join(samples):
    e = torch.stack([s["e"] + 6 * k for k, s in enumerate(samples)])
    return {"x": torch.stack([s["x"] for s in samples]), "e": e, "y": torch.stack([s["y"] for s in samples])}


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Linear(5, 16), nn.Linear(16, 1)
        self.msgs = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def train_step(self, data, optimizer=None):
        n = len(data["x"])
        h = self.embed(data["x"].flatten(0, 1))
        src, dst = data["e"].transpose(0, 1).flatten(1)
        src, dst = src % len(h), dst % len(h)
        for msg in self.msgs:
            h = h + torch.zeros_like(h).index_add(0, dst, msg(h)[src]).relu()
        loss = F.mse_loss(self.out(h.view(n, 6, 16).mean(1)).squeeze(1), data["y"])
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": n}
