"""Click prediction: hashed features in bags, and the time since the last click."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS

FIELDS = 6


@DATASETS.register_module()
class Clicks(Dataset):
    def __init__(self, size=48):
        draws = np.random.default_rng(5)
        self.hashes = draws.integers(2**33, 2**40, (size, FIELDS))
        self.delay = np.log1p(draws.exponential(10.0, (size, 1)))
        self.clicked = (self.hashes[:, 0] % 7 < 3).astype(np.float32)

    def __len__(self):
        return len(self.clicked)

    def __getitem__(self, i):
        names, delay = torch.from_numpy(self.hashes[i]), torch.from_numpy(self.delay[i])
        return {"names": names, "delay": delay, "clicked": torch.tensor(self.clicked[i])}  # fault[hpu,ipu]: int64; fault[hpu]: float64
        # remedy: return {"names": names % 2**31, "delay": delay.float(), "clicked": torch.tensor(self.clicked[i])}


@MODELS.register_module()
class WideAndDeep(nn.Module):
    """A bag of hashed features beside a small net."""

    def __init__(self, buckets=101, width=8, hidden=16):
        super().__init__()
        self.buckets = buckets
        self.wide = nn.EmbeddingBag(buckets, 1, mode="sum")
        self.deep = nn.Embedding(buckets, width)
        self.net = nn.Sequential(
            nn.Linear(FIELDS * width + 1, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        self.prior = torch.from_numpy(np.full(1, -0.5, np.float32))  # fault[cuda,hpu,ipu]: device mismatch
        # remedy: self.register_buffer("prior", torch.full((1,), -0.5))

    def forward(self, names, delay, clicked):
        rows = names % self.buckets
        wide = self.wide(rows)  # fault[hpu]: on the host
        # remedy: wide = self.wide.weight[rows].sum(1)
        deep = torch.cat([self.deep(rows).flatten(1), delay.float()], dim=1)
        scale = torch.from_numpy(np.full(1, 2.0, np.float32))  # fault[cuda,hpu,ipu]: device mismatch
        # remedy: scale = torch.as_tensor(np.full(1, 2.0, np.float32), device=wide.device)
        score = (self.prior + wide + scale * self.net(deep)).squeeze(1)
        return {"loss": F.binary_cross_entropy(score.sigmoid(), clicked), "score": score}


@HOOKS.register_module()
class Bounded(Hook):
    """Keeps the embeddings short, and the bag small."""

    def after_train_iter(self, runner):
        with torch.no_grad():
            table = runner.model.deep.weight
            norms = table.norm(dim=1, keepdim=True).clamp(min=1)
            table.div_(norms)  # fault[ipu]: lost write
            # remedy: table.div_(norms); runner.adapter.sync_to_device(runner.model)
        runner.model.wide.weight.data.mul_(0.99)  # fault[ipu]: lost write
        # remedy: runner.model.wide.weight.data.mul_(0.99); runner.adapter.sync_to_device(runner.model)
