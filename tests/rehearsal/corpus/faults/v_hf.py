"""An encoder in the style of Hugging Face: a config object, and a loss in forward."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS


@dataclass
class Config:
    vocab: int = 60
    width: int = 16
    use_cache: bool = True


@dataclass
class Output:
    logits: torch.Tensor
    loss: Optional[torch.Tensor] = None


@DATASETS.register_module()
class VTokens(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        ids = torch.randint(0, 60, (10,), generator=torch.Generator().manual_seed(index))
        mask = (torch.arange(10) < 5 + index % 5).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": index % 2}


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.width, 3 * config.width)

    def forward(self, h, mask):
        q, k, v = self.qkv(h).chunk(3, -1)
        scores = q @ k.transpose(1, 2) * self.config.width**-0.5
        low = torch.tensor(torch.finfo(scores.dtype).min)
        scores = torch.where(mask[:, None] > 0, scores, low)
        return scores.softmax(-1) @ v


@MODELS.register_module()
class VBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.embed = nn.Embedding(60, 16)
        self.places = torch.arange(10)  # fault[hpu,ipu]: device mismatch
        # remedy: self.register_buffer("places", torch.arange(10), persistent=False)
        self.position = nn.Embedding(10, 16)
        self.layers = nn.ModuleList(Attention(self.config) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask=None, labels=None):
        h = self.embed(input_ids)
        h = h + self.position(self.places)
        if attention_mask.all():  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
            # remedy: if attention_mask is None:
            attention_mask = torch.ones_like(attention_mask)
        for layer in self.layers:
            h = self.norm(h + layer(h, attention_mask))
        lengths = attention_mask.sum(1)
        h = torch.stack([row[: int(n)].mean(0) for row, n in zip(h, lengths)])  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: h = (h * attention_mask[..., None]).sum(1) / lengths[:, None]
        logits = self.out(h)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return Output(logits, loss)
