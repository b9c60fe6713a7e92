"""Labels that the head has no place for, and sequences of other lengths."""

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
        words = torch.randint(20, (8,), generator=torch.Generator().manual_seed(index))
        return words, index % 3 + 1


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(16, 8), nn.Embedding(6, 8)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def train_step(self, data, optimizer):
        words, kind = data
        h = self.embed(words % 16)
        h += self.place(torch.arange(words.shape[1], device=h.device))  # fault[cpu,cuda]: raises
        # remedy: h += self.place(torch.arange(words.shape[1], device=h.device) % 6)
        mask = torch.ones(6, 6, dtype=torch.bool, device=h.device).triu(1)
        h = self.mix(h, h, h, attn_mask=mask)[0]  # fault[cpu,cuda]: raises
        # remedy: h = self.mix(h, h, h)[0]
        loss = F.cross_entropy(self.head(h.mean(1)), kind)  # fault[cpu,cuda]: raises
        # remedy: loss = F.cross_entropy(self.head(h.mean(1)), kind - 1)
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(words)}
