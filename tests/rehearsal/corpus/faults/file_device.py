"""A device for the whole file, tensors by names of old classes, and the best of epochs."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor


class Head(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(width, 4)

    def forward(self, x, noise):
        return self.out(x + noise)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net, self.head = nn.Linear(16, width), Head(width)
        self.register_buffer("last", torch.tensor(5))

    def forward(self, x):
        h = torch.relu(self.net(x))
        start = torch.zeros(len(x), h.shape[1], device=device)  # fault[hpu,ipu]: device mismatch
        # remedy: start = torch.zeros(len(x), h.shape[1], device=h.device)
        share = torch.tensor(0.5, device=h.device)  # fault[cuda]: host sync
        # remedy: share = torch.full((), 0.5, device=h.device)
        start[:, :2] = torch.tensor([0.0, 1.0])  # fault[cuda]: host sync; fault[hpu]: host waits
        # remedy: start[:, :2] = torch.linspace(0.0, 1.0, 2, device=h.device)
        noise = Tensor([[0.01] * h.shape[1]])  # fault[cuda]: host sync; fault[hpu,ipu]: device mismatch
        # remedy: noise = torch.full((1, h.shape[1]), 0.01, device=h.device)
        places = torch.arange(self.last)  # fault[cuda,hpu]: host; fault[hpu]: device mismatch; fault[ipu]: cannot be compiled
        # remedy: places = torch.arange(5, device=h.device)
        some = (h[:, :5] * places).sum(1, True) + h[:, [0, 2]].mean(1, True)  # fault[cuda]: host sync
        # remedy: some = (h[:, :5] * places).sum(1, True) + h[:, :3:2].mean(1, True)
        return self.head(h * share + start + some, noise)


@HOOKS.register_module()
class Lowest(Hook):
    """Saves the weights of the epoch with the lowest loss."""

    def __init__(self):
        self.lowest = float("inf")  # fault[cpu,cuda,hpu,ipu]: resume
        # remedy: self.lowest, self.state_dict, self.load_state_dict = float("inf"), lambda: {"lowest": self.lowest}, self.load

    def load(self, state):
        self.lowest = state["lowest"]

    def after_train_epoch(self, runner):
        loss = float(runner.outputs["loss"])
        if loss < self.lowest:
            self.lowest = loss
            runner.save_checkpoint(name="lowest")
