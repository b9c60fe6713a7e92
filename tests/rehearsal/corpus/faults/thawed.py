"""A backbone that is freed after two updates, and noise of which a global count decides."""

import math
import random

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS

steps_done = 0  # fault[cpu,cuda,hpu]: resume


@MODELS.register_module()
class Tuned(nn.Module):
    def __init__(self, classes=4, width=8):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, width), nn.ReLU())
        self.head = nn.Linear(width, classes)
        for weight in self.backbone.parameters():
            weight.requires_grad = False

    def forward(self, x):
        global steps_done
        share = 0.05 + 0.85 * math.exp(-steps_done / 200)  # fault[hpu]: compiled again
        steps_done += 1
        if self.training and random.random() < share:  # fault[hpu]: graph break
            x = x + 0.01 * torch.randn_like(x)
        return self.head(self.backbone(x))


@HOOKS.register_module()
class Free(Hook):
    def after_train_iter(self, runner):
        if runner.iter == 1:
            for weight in runner.model.backbone.parameters():
                weight.requires_grad = True  # fault[cpu,cuda,hpu]: resume
