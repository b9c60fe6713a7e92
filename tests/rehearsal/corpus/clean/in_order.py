"""Streams of a GPU that wait for each other, and a copy that the host waits for."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS

# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 4)
        cuda = torch.cuda.is_available()
        self.side = torch.cuda.Stream() if cuda else None
        self.ready = torch.cuda.Event(enable_timing=True) if cuda else None

    def forward(self, x):
        h = self.one(x)
        if self.side is None:
            return self.out(h + self.two(h))
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            g = self.two(h)
            self.ready.record()
        torch.cuda.current_stream().wait_event(self.ready)
        return self.out(h + g)


@HOOKS.register_module()
class Shown(Hook):
    def before_run(self, runner):
        self.shown = None
        self.copied = torch.cuda.Event() if torch.cuda.is_available() else None

    def after_train_iter(self, runner):
        if self.shown is not None and self.copied is not None:
            self.copied.synchronize()
            runner.logger.debug("%s", self.shown.item())
        self.shown = runner.outputs["loss"].detach().to("cpu", non_blocking=True)
        if self.copied is not None:
            self.copied.record()
