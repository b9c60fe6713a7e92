"""An optimizer with a dict by parameter that is not its state, a schedule and hooks."""

import math
import time

import torch
from torch import nn
from torch.optim import Optimizer

from devrun.hooks import HOOKS, Hook, LrUpdaterHook
from devrun.registry import MODELS, OPTIMIZERS


@OPTIMIZERS.register_module()
class Rose(Optimizer):
    def __init__(self, params, lr=0.01, decay=0.9):
        super().__init__(params, {"lr": lr, "decay": decay})
        self.squares = {}  # fault[cpu,cuda]: resume

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p not in self.squares:
                    self.squares[p] = torch.zeros(p.shape)  # fault[cuda]: device mismatch
                    # remedy: self.squares[p] = torch.zeros_like(p)
                self.squares[p].mul_(group["decay"]).addcmul_(p.grad, p.grad, value=1 - group["decay"])
                p.addcdiv_(p.grad, self.squares[p].sqrt() + 1e-8, value=-group["lr"])


@HOOKS.register_module()
class PlateauLrUpdaterHook(LrUpdaterHook):
    def value(self, base, progress, total):
        return base * math.sqrt(2 / progress)  # fault[cpu,cuda]: raises
        # remedy: return base * math.sqrt(2 / (progress + 1))


@HOOKS.register_module()
class Slope(Hook):
    """Stops early when the loss stays where it is."""

    def __init__(self):
        self.losses = []

    def after_train_iter(self, runner):
        self.losses.append(runner.outputs["loss"])
        if len(self.losses) > 3 and torch.stack(self.losses[-3:]).std() < 1e-12:  # fault[cuda]: host sync
            # remedy: if False:
            runner.request_stop("no progress")


@HOOKS.register_module()
class Histograms(Hook):
    def after_backward(self, runner):
        grads = torch.cat([p.grad.flatten() for p in runner.model.parameters()])  # fault[cpu,cuda]: raises
        # remedy: grads = torch.cat([p.grad.flatten() for p in runner.model.parameters() if p.grad is not None])
        self.last = grads.norm()

    def after_train_epoch(self, runner):
        self.when = time.time()


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
        self.spare = nn.Linear(8, 4)  # fault[cpu]: no gradient
        # remedy: self.spare = nn.Identity()

    def forward(self, x):
        return self.net(x)
