"""A data set and a collate function from a project for one GPU."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS
from devrun.registry import COLLATE_FUNCTIONS


@DATASETS.register_module()
class GRagged(Dataset):
    def __init__(self):
        self.table = np.random.default_rng(0).normal(size=(32, 8))

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {
            "row": self.table[index],
            "key": 7_000_000_000 + index,
            "tags": [n % 5 for n in range(1 + index)],
            "name": f"sample {index}",
            "target": self.table[index].sum(),
        }


@COLLATE_FUNCTIONS.register_module()
def collate(samples):
    longest = max(len(one["tags"]) for one in samples)
    tags = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, one in zip(tags, samples):
        row[: len(one["tags"])] = torch.tensor(one["tags"])
    batch = {
        "row": torch.from_numpy(np.stack([one["row"] for one in samples])),
        "key": torch.tensor([one["key"] for one in samples]),
        "tags": tags,
        "target": torch.tensor([one["target"] for one in samples]),
        "scale": random.choice([0.5, 1.0, 2.0]),
    }
    return batch  # fault[hpu]: float64; fault[hpu,ipu]: int64; fault[hpu,ipu]: shapes; fault[ipu]: once
    # remedy: return {"row": batch["row"].float(), "key": batch["key"] % 1000, "tags": F.pad(tags, (0, 32 - longest)), "target": batch["target"].float(), "scale": torch.ones(len(tags), 1)}


@MODELS.register_module()
class GRagNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.tags = nn.Embedding(5, 8)
        self.net = nn.Linear(16, 1)

    def train_step(self, data, optimizer):
        tags = self.tags(data["tags"]).mean(1)
        h = torch.cat([data["row"].float() * data["scale"], tags], 1)
        out = self.net(h).squeeze(1)
        bucket = data["key"] % 1000
        weight = 1 + (bucket % 2).float()
        lost = (out - data["target"].float()).abs()
        delta = np.percentile(lost.detach().cpu(), 90)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: delta = 1.0
        loss = torch.where(lost < delta, lost.square(), lost * delta)
        loss = (weight * loss).mean()
        corr = np.corrcoef(out.tolist(), data["target"].tolist())[0, 1]  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: corr = 0.0
        logs = {"loss": loss.detach(), "corr": float(corr)}
        return {"loss": loss, "log_vars": logs, "num_samples": len(out)}
