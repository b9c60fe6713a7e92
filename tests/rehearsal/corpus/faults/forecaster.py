"""Forecasts from sliding windows, with reversible normalisation and a decoder that feeds itself."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, LOSSES, METRICS, MODELS


@DATASETS.register_module()
class Windows(Dataset):
    def __init__(self, length=60, past=12, future=4):
        t = np.arange(length)
        self.series = np.stack([np.sin(t / 5), np.cos(t / 7)], 1)
        self.past, self.future = past, future

    def __len__(self):
        return len(self.series) - self.past

    def __getitem__(self, i):
        past = self.series[i : i + self.past]
        future = self.series[i + self.past : i + self.past + self.future]
        return torch.from_numpy(past).float(), torch.from_numpy(future).float()  # fault[cpu,cuda]: raises
        # remedy: return torch.from_numpy(past).float(), torch.from_numpy(np.resize(future, (self.future, 2))).float()


class RevIN(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def norm(self, x):
        self.mean = x.mean(1, keepdim=True)
        self.std = x.std(1, keepdim=True) + 1e-5
        return (x - self.mean) / self.std * self.scale + self.shift

    def denorm(self, x):
        return (x - self.shift) / self.scale * self.std + self.mean


@MODELS.register_module()
class Forecaster(nn.Module):
    def __init__(self, width=2, hidden=8, future=4):
        super().__init__()
        self.revin, self.future = RevIN(width), future
        self.encoder = nn.GRU(width, hidden, batch_first=True)
        self.cell = nn.GRUCell(width, hidden)
        self.out = nn.Linear(hidden, width)
        self.gate = nn.Linear(hidden, 1)  # fault[cpu]: no gradient
        # remedy: --cfg-options freeze=[gate]

    def forward(self, x):
        x = self.revin.norm(x)
        _, h = self.encoder(x)
        h, step, outs = h[0], x[:, -1], []
        for _ in range(self.future):
            h = self.cell(step, h)
            step = self.out(h)
            outs.append(step)
        if torch.isnan(step).any():  # fault[cuda]: host sync
        # remedy: if False:
            raise ValueError("diverged")
        return self.revin.denorm(torch.stack(outs, 1))


@LOSSES.register_module()
class Weighted(nn.Module):
    def __init__(self, future=4):
        super().__init__()
        self.weights = torch.linspace(1, 2, future)[:, None]  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("weights", torch.linspace(1, 2, future)[:, None])

    def forward(self, said, goal):
        return ((said - goal).abs() * self.weights).mean()


@METRICS.register_module()
def mape(said, goal):
    return torch.tensor(np.mean(np.abs((said.numpy() - goal.numpy()) / (goal.numpy() + 1e-3))))  # fault[cuda]: numpy
    # remedy: return ((said - goal) / (goal + 1e-3)).abs().mean()
