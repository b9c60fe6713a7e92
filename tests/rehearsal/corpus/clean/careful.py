"""Looks as if it waited and branched at each step, and does neither on the device."""

import math
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun import DATASETS, HOOKS, MODELS
from devrun.hooks import Hook


@DATASETS.register_module()
class GCareful(Dataset):
    def __init__(self):
        self.rows = np.random.default_rng(0).normal(size=(32, 16))

    def __len__(self):
        return 32

    def __getitem__(self, index):
        row = torch.from_numpy(self.rows[index]).float()
        if row.max().item() > 3:
            row = row / row.abs().max()
        row = row[torch.randperm(16)] * random.uniform(0.9, 1.1)
        return row, int(row.sum() > 0)


@MODELS.register_module()
class GCarefulNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.widths = torch.linspace(8, 16, 3).int().tolist()
        self.layers = nn.ModuleList()
        before = 16
        for width in self.widths:
            self.layers.append(nn.Linear(before, width))
            before = width
        self.head = nn.Linear(before, 2)
        self.register_buffer("scale", torch.tensor(1 / math.sqrt(before)))
        self.register_buffer("mean", torch.zeros(before))
        self.drop = 0.1

    def forward(self, x):
        assert x.shape[1] == 16, x.shape
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number < len(self.layers) - 1:
                x = x.relu()
            if self.drop > 0 and self.training:
                x = F.dropout(x, self.drop, True)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        x = torch.where(x.abs() > 100, torch.zeros_like(x), x - self.mean)
        index = torch.arange(x.shape[1], device=x.device)
        x = x * (index % 2 == 0)
        return self.head(x) * self.scale


@HOOKS.register_module()
class GCarefulHook(Hook):
    def before_run(self, runner):
        self.count = sum(p.numel() for p in runner.model.parameters())
        self.largest = max(p.abs().max().item() for p in runner.model.parameters())

    def after_train_epoch(self, runner):
        runner.logger.info(f"{float(runner.outputs['loss']):.3f}")

    def after_train_iter(self, runner):
        if self.every_n_iters(runner, 50):
            runner.logger.info(f"{runner.outputs['loss'].item():.3f}")
