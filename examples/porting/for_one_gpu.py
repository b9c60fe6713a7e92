"""A classifier as it may come from a project that only ever saw one GPU.

    devrun check examples/porting/for_one_gpu.yaml --import for_one_gpu

`devrun check` says what of it would break, be slow or differ on other devices, with the
line and the remedy; `anywhere.py` beside it is what is left when all of that is done.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from devrun import HOOKS, MODELS
from devrun.hooks import Hook
from devrun.run import Run


@MODELS.register_module()
class GPUNet(nn.Module):
    """Two layers on the 64 pixels of a digit, and habits of code for one GPU."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.pixels = torch.full((64,), 78.0)
        self.body = nn.Linear(64, width)
        self.head = nn.Linear(width, 10)
        self.steps = 0

    def forward(self, images: Tensor) -> Tensor:
        x = (images.flatten(1) - self.pixels) / 96
        hidden = self.body(x.double().float())
        if self.training:
            self.steps += 1
            hidden = hidden * (1 + 0.01 * np.random.randn())
        if hidden.abs().max() > 1e4:
            hidden = hidden.clamp(-1e4, 1e4)
        scale = torch.linalg.svdvals(self.body.weight)[0]
        return self.head(torch.relu(hidden) / scale)


@HOOKS.register_module()
class WatchLoss(Hook):
    """Keeps the loss of each update as a number."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_train_iter(self, runner: Run) -> None:
        self.losses.append(runner.outputs["loss"].item())
