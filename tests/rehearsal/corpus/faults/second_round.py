"""A masked autoencoder in fp16 by hand, whose mask grows from the second epoch on."""

import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Waves(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        return torch.sin(torch.arange(16.0) * (1 + i % 7) / 5), i % 4


@MODELS.register_module()
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 16))
        self.share = 0.25  # fault[cpu,cuda]: resume
        # remedy: self.register_buffer("share", torch.tensor(0.25))
        self.floor = 0.0  # is a function of the epoch
        enabled = torch.cuda.is_available()
        self.scaler = torch.amp.GradScaler(enabled=enabled)  # fault[cuda]: resume
        # remedy: self.scaler = torch.amp.GradScaler(enabled=False)

    def train_step(self, data, optimizer, **kwargs):
        x, _ = data
        kept = torch.rand_like(x) * (1 - self.floor) > self.share
        with torch.autocast(x.device.type, torch.bfloat16):
            made = self.net(x * kept)
        loss = (made.float() - x).square().mean()
        optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self.scaler.step(optimizer)
        self.scaler.update()
        return {"loss": loss.detach(), "log_vars": {}, "num_samples": len(x)}


@HOOKS.register_module()
class Harder(Hook):
    def before_train_epoch(self, runner):
        if runner.epoch >= 1:
            runner.model.share += 0.1
            runner.model.floor = 0.1 * runner.epoch
