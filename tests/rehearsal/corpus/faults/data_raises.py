"""Samples of which one cannot be read, and a batch that is put together on the host."""

import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index % 8 == 3:
            raise OSError(f"sample {index} cannot be read")  # fault[cpu,cuda]: raises
            # remedy: pass
        return torch.ones(16) * index, index % 4


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        bias = torch.zeros(4)  # fault[cuda]: device mismatch
        # remedy: bias = torch.zeros(4, device=x.device)
        torch.cuda.synchronize()  # fault[cpu]: torch.cuda.synchronize; fault[cuda]: host sync
        # remedy: -
        return self.net(x) + bias
