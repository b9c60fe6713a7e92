"""Tones of a string: bins are drawn by an object that learns which are hard, features are
kept by a hook, and a hook counts how long nothing got better."""

import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks.base import Hook
from devrun.registry import DATASETS, HOOKS, MODELS


@DATASETS.register_module()
class Strings(Dataset):
    def __init__(self, size=32, bins=6):
        self.size, self.bins = size, bins

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        time = torch.arange(24) / 24
        waves = [torch.sin(2 * math.pi * (n + 1) * time + i) / (n + 1 + i % 3) for n in range(self.bins)]
        return torch.stack(waves)


class HardBins:
    """Bins of which the model knows least come more often."""

    def __init__(self, bins):
        self.weights = [1.0] * bins  # fault[cpu,cuda,hpu]: resume

    def next(self):
        return max(range(len(self.weights)), key=self.weights.__getitem__)

    def learned(self, bin):
        self.weights[bin] *= 0.5  # fault[ipu]: once
        # remedy[ipu]: -


@MODELS.register_module()
class Strummer(nn.Module):
    def __init__(self, bins=6, width=8):
        super().__init__()
        self.hard = HardBins(bins)
        self.enter = nn.Linear(24, width)
        self.leave = nn.Linear(width, 24)
        self.seen = {"enter": [], "leave": []}
        for name in self.seen:
            getattr(self, name).register_forward_hook(self.keeps(name))

    def keeps(self, name):
        def keep(module, given, made):
            self.seen[name].append(made)  # fault[cpu,cuda,hpu]: kept; fault[ipu]: once
            # remedy: self.seen[name] = [made]

        return keep

    def train_step(self, data, optimizer=None):
        bin = self.hard.next()
        wave = data[:, bin]  # fault[hpu]: compiled again
        # remedy[hpu]: wave = data[:, 0]
        out = self.leave(torch.relu(self.enter(wave)))
        loss = (out - wave).square().mean() + 0.01 * self.seen["enter"][-1].abs().mean()
        self.hard.learned(bin)
        return {"loss": loss, "log_vars": {"loss": loss.detach()}, "num_samples": len(data)}


@HOOKS.register_module()
class Patience(Hook):
    """Ends a run whose loss gets no better, as other frameworks' early stopping."""

    def __init__(self, patience=400):
        self.patience = patience
        self.bad = 0  # fault[cpu,cuda,hpu,ipu]: resume
        # remedy: self.bad = 0
        # remedy+: type(self).state_dict = lambda hook: {"bad": hook.bad}
        # remedy+: type(self).load_state_dict = lambda hook, state: setattr(hook, "bad", state["bad"])

    def after_train_iter(self, runner):
        if not runner.iter % 100:
            self.bad = 0
            return
        self.bad += 1
        if self.bad > self.patience:
            raise KeyboardInterrupt("the loss gets no better")
