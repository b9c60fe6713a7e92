"""A model with a config object, whose forward gives an output object."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@dataclass
class TinyConfig:
    vocab: int = 32
    hidden: int = 16
    labels: dict = field(default_factory=lambda: {0: "no", 1: "yes"})


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        ids = torch.arange(index, index + 12) % 32
        return {"input_ids": ids, "attention_mask": torch.ones(12), "labels": index % 2}


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = TinyConfig()
        self.tokens = nn.Embedding(self.config.vocab, self.config.hidden)
        self.register_buffer("places", torch.arange(12)[None], persistent=False)
        self.positions = nn.Embedding(12, self.config.hidden)
        self.norm = nn.LayerNorm(self.config.hidden)
        self.head = nn.Linear(self.config.hidden, len(self.config.labels))

    def forward(self, input_ids, attention_mask=None, labels=None):
        h = self.tokens(input_ids) + self.positions(self.places[:, : input_ids.shape[1]])
        weight = attention_mask[:, :, None].to(h.dtype)
        h = (self.norm(h) * weight).sum(1) / weight.sum(1)
        logits = self.head(h)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}
