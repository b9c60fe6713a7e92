"""Code for CUDA only, which is right there."""

import torch
from torch import nn

from devrun.registry import MODELS

# devices: cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4).cuda()
        self.shift = torch.zeros(4).cuda()
        self.noise = torch.cuda.FloatTensor(4).fill_(0)
        self.stream = torch.cuda.Stream()

    def forward(self, x):
        torch.cuda.nvtx.range_push("forward")
        rate = torch.tensor(1.0).cuda(non_blocking=True)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            out = self.net(x.cuda()) * rate + self.shift
        torch.cuda.current_stream().wait_stream(self.stream)
        torch.cuda.nvtx.range_pop()
        with torch.autocast("cuda", enabled=False):
            return out + self.noise + torch.zeros(4, device="cuda")
