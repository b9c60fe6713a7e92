"""What raises does not hide what comes after it."""

import torch
from torch import nn

from devrun import HOOKS, MODELS
from devrun.hooks import Hook


@MODELS.register_module()
class VBreaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        h = self.conv(x).mean((2, 3))
        h = h.view(-1).resize_(len(x), 8)  # fault[hpu,ipu]: raises
        # remedy: h = h.view(len(x), 8)
        h = self.norm(h)
        h = h + torch.zeros(8).numpy().sum() * torch.from_numpy(h.detach().numpy()).sum()  # fault[hpu]: refused; fault[ipu]: cannot be compiled
        # remedy: h = h
        h = h + torch.ones(8)  # fault[hpu]: device mismatch
        # remedy: h = h + torch.ones(8, device=h.device)
        spread = torch.linalg.svdvals(self.head.weight)[0]  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: spread = self.head.weight.norm()
        return self.head(h) / spread


@HOOKS.register_module()
class VWatch(Hook):
    def after_train_iter(self, runner):
        self.last = runner.outputs["loss"].item()  # fault[hpu]: host waits
        # remedy: self.last = runner.outputs["loss"].detach()
        torch.save(runner.model.state_dict(), "/dev/null")  # fault[hpu]: host waits
        # remedy: pass
