"""A classifier by somebody who always had a GPU."""

import torch
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 8, device="cuda")  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: self.body = nn.Linear(16, 8)
        self.head = nn.Linear(8, 4)
        self.side = torch.cuda.Stream()  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: self.side = None
        self.register_buffer("shift", torch.zeros(8).cuda())  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: self.register_buffer("shift", torch.zeros(8))

    def forward(self, x):
        h = self.body(x).relu() + self.shift
        noise = torch.empty(8, device=torch.device("cuda", 0)).normal_()  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: noise = torch.randn(8, device=x.device)
        steps = torch.arange(8).to("cuda:0")  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: steps = torch.arange(8, device=x.device)
        h = h + 0.01 * noise + 0 * steps
        return self.head(h)


@HOOKS.register_module()
class Memory(Hook):
    def before_run(self, runner):
        self.name = torch.cuda.get_device_name()  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: self.name = "a device"
        torch.set_default_device("cuda")  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: pass

    def after_train_iter(self, runner):
        free, whole = torch.cuda.mem_get_info()  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: free, whole = 1, 2
        torch.cuda.current_stream().synchronize()  # fault[cpu,hpu,ipu]: hard-wired cuda
        # remedy: pass
