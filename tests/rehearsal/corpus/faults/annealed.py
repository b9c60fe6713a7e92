"""A schedule of torch's in a hook of one's own, and the best loss in the model."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
        self.best = None  # fault[cpu,cuda,hpu]: resume
        # remedy: self.best = 0.0

    def train_step(self, data, optimizer):
        x, y = data
        loss = nn.functional.cross_entropy(self.net(x), y)
        now = loss.detach()
        if self.best is None or now < self.best:  # fault[cuda,hpu]: host
            # remedy: if self.best is None:
            self.best = now
        return {"loss": loss, "log_vars": {"loss": now}, "num_samples": len(x)}

    def val_step(self, data, optimizer=None):
        return self.train_step(data, optimizer)


@HOOKS.register_module()
class Cosine(Hook):
    def before_run(self, runner):
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(runner.optimizer, 10)  # fault[cpu,cuda,hpu]: resume

    def after_train_iter(self, runner):
        self.schedule.step()


@HOOKS.register_module()
class Warm(Hook):
    schedule = None

    def before_train_iter(self, runner):
        if self.schedule is None:
            self.schedule = torch.optim.lr_scheduler.LinearLR(runner.optimizer, 0.1)  # fault[cpu,cuda,hpu]: resume
        self.schedule.step()
