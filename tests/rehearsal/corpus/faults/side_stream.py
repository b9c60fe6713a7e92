"""Two branches on two streams of a GPU, batches fetched ahead, and a loss shown late."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@MODELS.register_module()
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 4)
        cuda = torch.cuda.is_available()
        self.side = torch.cuda.Stream() if cuda else None
        self.fetch = torch.cuda.Stream() if cuda else None

    def forward(self, x):
        h = self.one(x)
        if self.side is None:
            return self.out(h + self.two(h))
        torch.cuda.set_stream(self.fetch)
        half = h * 0.5  # fault[cuda]: race
        # remedy: self.fetch.wait_stream(torch.cuda.default_stream()); half = h * 0.5
        self.fetch.record_event()
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.current_stream().wait_stream(self.fetch)
        h = h + half
        with torch.cuda.stream(self.fetch):
            shift = torch.linspace(0, 1, 16).to("cuda", non_blocking=True)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            g = self.two(h + shift)  # fault[cuda]: race
            # remedy: self.side.wait_stream(self.fetch); g = self.two(h + shift)
        return self.out(h + g)  # fault[cuda]: race
        # remedy: torch.cuda.current_stream().wait_stream(self.side)
        # remedy+: return self.out(h + g)


@HOOKS.register_module()
class Shown(Hook):
    def after_train_iter(self, runner):
        shown = runner.outputs["loss"].detach().to("cpu", non_blocking=True)
        self.last = shown.item()  # fault[cuda]: race
        # remedy: self.last = 0.0
