"""A language model whose head shares the weight of its embedding, on two IPUs."""

import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        tokens = (torch.arange(9) * (index + 1)) % 16
        return tokens[:-1], tokens[1:]


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 32)
        self.body = nn.Sequential(nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 32))
        self.head = nn.Linear(32, 16, bias=False)
        self.head.weight = self.embed.weight  # fault[ipu]: shared weights
        # remedy: --cfg-options 'ipu.train_split_edges=[{layer_to_call: body.2, ipu_id: 1}, {layer_to_call: head, ipu_id: 0}]' ipu.executionStrategy=AutoIncrement

    def forward(self, x):
        return self.head(self.body(self.embed(x))).transpose(1, 2)
