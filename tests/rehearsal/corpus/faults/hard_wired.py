"""A classifier that takes CUDA for granted."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

torch.ones(1).cuda()  # fault[cpu]: .cuda()
# remedy: -


def wait(stream: torch.cuda.Stream = None, device: torch.cuda.device = None):
    pass


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        torch.cuda.set_device(0)  # fault[cpu]: torch.cuda.set_device
        # remedy: -
        self.net = nn.Linear(16, 4).cuda()  # fault[cpu]: .cuda()
        # remedy: self.net = nn.Linear(16, 4)
        scale = torch.ones(16, device="cuda:0")  # fault[cpu]: ones(device='cuda')
        # remedy: scale = torch.ones(16)
        self.register_buffer("scale", scale)

    def forward(self, x):
        x = x.to("cuda") * self.scale  # fault[cpu]: .to('cuda')
        # remedy: x = x * self.scale
        torch.cuda.synchronize()  # fault[cpu]: torch.cuda.synchronize
        # remedy: -
        with torch.autocast("cuda", torch.bfloat16):  # fault[cpu]: autocast('cuda')
            # remedy: with torch.autocast(x.device.type, torch.bfloat16):
            out = self.net(x)
        torch.cuda.nvtx.range_push("end")  # fault[cpu]: nvtx.range_push
        # remedy: -
        ones = torch.cuda.FloatTensor(4)  # fault[cpu]: torch.cuda.FloatTensor
        # remedy: ones = torch.empty(4, device=x.device)
        scaler = torch.amp.GradScaler("cuda")  # fault[cpu]: GradScaler('cuda')
        # remedy: -
        torch.cuda.empty_cache()
        print(torch.cuda.memory_allocated() // 2**20)
        used = torch.cuda.get_device_properties(0).total_memory  # fault[cpu]: get_device_properties
        # remedy: used = 0
        return out.float() + ones.fill_(1) + (used and 0)
