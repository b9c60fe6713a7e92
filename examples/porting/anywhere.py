"""The classifier of `for_one_gpu.py` after every remedy of `devrun check`.

    devrun check examples/porting/anywhere.yaml --import anywhere

It finds nothing more.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from devrun import HOOKS, MODELS
from devrun.hooks import Hook
from devrun.run import Run


@MODELS.register_module()
class AnyNet(nn.Module):
    """Two layers on the 64 pixels of a digit, with noise on what is between them."""

    pixels: Tensor

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.register_buffer("pixels", torch.full((64,), 78.0))
        self.body = nn.Linear(64, width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = (images.flatten(1) - self.pixels) / 96
        hidden = self.body(x)
        if self.training:
            hidden = hidden * (1 + 0.01 * torch.randn_like(hidden))
        hidden = hidden.clamp(-1e4, 1e4)
        scale = self.body.weight.square().sum().sqrt()
        logits: Tensor = self.head(torch.relu(hidden) / scale)
        return logits


@HOOKS.register_module()
class LastLoss(Hook):
    """Keeps the loss of the last update, where it is."""

    def __init__(self) -> None:
        self.loss: Tensor | None = None

    def after_train_iter(self, runner: Run) -> None:
        self.loss = runner.outputs["loss"].detach()
