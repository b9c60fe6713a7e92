"""State that looks lost, and is not; reads that look like waits, and are none."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS

# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(16, 8), nn.Linear(8, 4)]
        for number, layer in enumerate(self.layers):
            self.add_module(f"layer{number}", layer)
        self.frozen = nn.Linear(16, 8).requires_grad_(False)
        self.register_buffer("places", torch.arange(8), persistent=False)
        self.register_buffer("queue", torch.zeros(12, 8))
        self.heat, self.calls = 1.0, 0
        self.draw = random.Random(1)

    def get_extra_state(self):
        return {"heat": self.heat, "draw": list(self.draw.getstate()[1])}

    def set_extra_state(self, state):
        self.heat = state["heat"]
        self.draw.setstate((3, tuple(state["draw"]), None))

    def forward(self, x):
        h = self.layers[0](x) + self.frozen(x)
        if self.training:
            self.heat = self.heat * 0.99 + 0.001 * self.draw.random()
            self.queue = torch.cat([self.queue[len(h) :], h.detach()])
            self.calls += 1
            if self.calls % 50 == 0:
                print(f"{h.mean().item():.2f}")
        h = h + 0.1 * self.queue.mean(0) * torch.tensor(0.5)
        h = torch.where(h > 0, h, 0.1 * h)
        h.mul_(1.0)
        picked = h[:, self.places[torch.randperm(8, device=h.device)]]
        size = float(np.sqrt(h.shape[0]))
        return self.layers[1](picked * size / size) / self.heat


@HOOKS.register_module()
class Smooth(Hook):
    def __init__(self):
        self.value, self.losses = None, []

    def state_dict(self):
        return {"value": None if self.value is None else float(self.value)}

    def load_state_dict(self, state):
        self.value = state["value"]

    def after_train_iter(self, runner):
        loss = runner.outputs["loss"].detach()
        self.value = loss if self.value is None else 0.9 * self.value + 0.1 * loss

    def after_train_epoch(self, runner):
        self.losses.append(float(self.value))
