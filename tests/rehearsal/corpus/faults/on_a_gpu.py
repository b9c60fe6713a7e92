"""Code that was only ever run on one GPU."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS

DEVICE = torch.device("cuda")


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 8, device="cuda")  # fault[cpu]: hard-wired cuda
        # remedy: self.net = nn.Linear(16, 8)
        self.last = nn.Linear(8, 4).to(DEVICE)  # fault[cpu]: hard-wired cuda
        # remedy: self.last = nn.Linear(8, 4)
        self.last.to(device="cuda")  # fault[cpu]: hard-wired cuda
        # remedy: pass
        self.draws = torch.Generator("cuda")  # fault[cpu]: hard-wired cuda
        # remedy: self.draws = None

    def forward(self, x):
        x = x.cuda(0)  # fault[cpu]: .cuda()
        # remedy: pass
        h = self.net(x) + torch.randn(8, generator=self.draws, device=DEVICE)  # fault[cpu]: hard-wired cuda
        # remedy: h = self.net(x) + torch.randn(8, device=x.device)
        with torch.cuda.amp.autocast():  # fault[cpu]: autocast
            # remedy: with torch.autocast(x.device.type):
            return self.last(h).float()


@HOOKS.register_module()
class Times(Hook):
    def before_run(self, runner):
        self.start = torch.cuda.Event(enable_timing=True)  # fault[cpu]: torch.cuda.Event
        # remedy: self.start = None

    def after_train_iter(self, runner):
        torch.cuda.empty_cache()
        torch.cuda.current_stream().synchronize()  # fault[cpu]: torch.cuda.current_stream
        # remedy: pass
        torch.cuda.reset_peak_memory_stats()  # fault[cpu]: reset_peak_memory_stats
        # remedy: pass
        print(torch.cuda.memory_stats().get("num_ooms", 0))
