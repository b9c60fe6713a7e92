"""Hooks that look at every update."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
        self.idle = nn.Linear(4, 4)  # fault[cpu]: no gradient
        # remedy: self.idle = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        return self.net(x)


@HOOKS.register_module()
class Saves(Hook):
    def after_train_iter(self, runner):
        torch.save(runner.model.state_dict(), "last.pth")  # fault[cuda]: torch.save
        # remedy: if self.every_n_iters(runner, 500): torch.save(runner.model.state_dict(), "last.pth")


@HOOKS.register_module()
class Reads(Hook):
    def __init__(self):
        self.losses, self.norms = [], []

    def after_train_iter(self, runner):
        self.losses.append(float(runner.outputs["loss"]))  # fault[cuda]: float()
        # remedy: self.losses.append(runner.outputs["loss"].detach())
        for weight in runner.model.parameters():
            self.norms.append(weight.norm().item())  # fault[cuda]: .item()
            # remedy: self.norms.append(weight.detach().norm())
        print(f"loss {runner.outputs['loss']:.3f}")  # fault[cuda]: f-string
        # remedy: -


@HOOKS.register_module()
class Breaks(Hook):
    def after_train_iter(self, runner):
        runner.outputs["no such key"]  # fault[cpu,cuda]: raises
        # remedy: runner.outputs["loss"]
