"""Signals, with operators that not every device has."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS


@DATASETS.register_module()
class VSignals(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=draw), torch.randn(4, generator=draw)


@MODELS.register_module()
class VOps(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        h = self.body(x)
        power = torch.fft.rfft(h).abs().mean()  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: power = h.square().mean().sqrt()
        gram = h.t() @ h + torch.eye(16, device=h.device)
        whiten = torch.linalg.cholesky(gram)  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: whiten = gram / gram.norm()
        inverse = torch.linalg.inv(gram)  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: inverse = gram
        seen = torch.histc(h.detach(), bins=4)  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: seen = h.detach()
        wide = F.interpolate(h[:, None], size=32, mode="linear")  # fault[ipu]: cannot be compiled
        # remedy: wide = F.interpolate(h[:, None], size=32, mode="nearest")
        middle = h.kthvalue(8, dim=1).values  # fault[ipu]: cannot be compiled
        # remedy: middle = h.mean(1)
        places = torch.searchsorted(torch.linspace(-1, 1, 8, device=h.device), h.detach())  # fault[ipu]: cannot be compiled
        # remedy: places = h.detach()
        rolled = h.cummax(1).values  # fault[ipu]: cannot be compiled
        # remedy: rolled = h.amax(1, keepdim=True)
        turned = torch.polar(h.abs(), h).real  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: turned = h.abs() * h.cos()
        gamma = torch.special.gammaln(h.abs() + 1)  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: gamma = h.abs()
        parts = (power, whiten, inverse, seen, wide, middle, places, rolled, turned, gamma)
        return self.head(h) + 0 * sum(part.float().sum() for part in parts)
