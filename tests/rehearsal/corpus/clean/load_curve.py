"""The load of the next hours: a window normalised and back, quantiles as a buffer, and a hook that looks rarely."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, LOSSES, MODELS


@DATASETS.register_module()
class Loads(Dataset):
    def __init__(self, size=48, past=24, horizon=6):
        hours = np.arange(size + past + horizon)
        self.load = (5 + np.sin(hours * np.pi / 12)).astype(np.float32)
        self.size, self.past, self.horizon = size, past, horizon

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        middle = i + self.past
        return self.load[i:middle].copy(), self.load[middle : middle + self.horizon].copy()


@LOSSES.register_module()
class Pinball(nn.Module):
    def __init__(self, quantiles=(0.1, 0.5, 0.9)):
        super().__init__()
        self.register_buffer("quantiles", torch.tensor(quantiles), persistent=False)

    def forward(self, scores, future):
        error = future.unsqueeze(-1) - scores
        return torch.maximum(self.quantiles * error, (self.quantiles - 1) * error).sum(-1).mean()


class Window(nn.Module):
    def forward(self, x):
        self.mean = x.mean(1, keepdim=True).detach()
        self.spread = (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        return (x - self.mean) / self.spread

    def back(self, x):
        return x * self.spread.unsqueeze(-1) + self.mean.unsqueeze(-1)


@MODELS.register_module()
class LoadNet(nn.Module):
    def __init__(self, past=24, horizon=6, width=32, quantiles=3):
        super().__init__()
        self.horizon, self.quantiles = horizon, quantiles
        self.window = Window()
        self.net = nn.Sequential(nn.Linear(past, width), nn.GELU(), nn.Linear(width, horizon * quantiles))

    def forward(self, past):
        out = self.net(self.window(past)).view(-1, self.horizon, self.quantiles)
        return self.window.back(out)


@HOOKS.register_module()
class WeightNorms(Hook):
    def __init__(self, interval=50):
        self.interval = interval

    def after_train_iter(self, runner):
        if self.every_n_iters(runner, self.interval):
            norms = [p.detach().norm() for p in runner.model.parameters()]
            runner.logger.info("weights: %.3f", torch.stack(norms).norm().item())
