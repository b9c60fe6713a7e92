"""A data set and a model with a memory of their own, which no checkpoint has."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __init__(self):
        self.draws = np.random.default_rng(0)  # fault[cpu,cuda]: resume
        # remedy: self.draws = np.random

    def __len__(self):
        return 24

    def __getitem__(self, index):
        seed = torch.Generator().manual_seed(index)
        noise = self.draws.random()
        row = torch.randn(16, generator=seed)
        return row + float(noise), index % 4


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
        self.other = torch.nn.Parameter(torch.ones(4))  # fault[cpu]: no gradient
        # remedy: --cfg-options freeze=[other]

    def forward(self, x):
        weight = torch.ones(4)  # fault[cuda]: device mismatch
        # remedy: weight = torch.ones(4, device=x.device)
        return self.net(x) * weight
