"""Samples that are put on the GPU by the data set and by the collate function."""

import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __init__(self):
        self.means = torch.zeros(16, device="cuda")  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: self.means = torch.zeros(16)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = torch.randn(16, generator=torch.Generator().manual_seed(index)).cuda()  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return x - self.means, index % 4


@COLLATE_FUNCTIONS.register_module()
def pinned(samples):
    x, y = default_collate(samples)
    y = y.pin_memory()  # fault[cpu,ipu]: pin_memory
    # remedy: pass
    return x, y.to("cuda", non_blocking=True)  # fault[cpu,hpu,ipu]: hard-wired cuda
    # remedy: return x, y


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        return self.net(x)
