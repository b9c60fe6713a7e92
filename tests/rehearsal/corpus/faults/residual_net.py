"""A small convolutional net with augmentations on the device, and a teacher beside it."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

DEVICE = torch.device("cuda")


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.teacher = [copy.deepcopy(self.stem)]  # fault[cuda]: device mismatch
        # remedy: self.teacher = nn.ModuleList([copy.deepcopy(self.stem).requires_grad_(False)])
        self.mean = torch.tensor([0.4, 0.4, 0.4]).view(1, 3, 1, 1)  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("mean", torch.tensor([0.4, 0.4, 0.4]).view(1, 3, 1, 1))
        self.std = torch.full((1, 3, 1, 1), 0.2).cuda()  # fault[cpu]: .cuda()
        # remedy: self.register_buffer("std", torch.full((1, 3, 1, 1), 0.2))

    def forward(self, x):
        x = (x - self.mean) / self.std
        if torch.rand(1).item() < 0.5:
            x = x.flip(3)
        kernel = torch.ones(3, 1, 3, 3) / 9  # fault[cuda]: device mismatch
        # remedy: kernel = torch.ones(3, 1, 3, 3, device=x.device) / 9
        x = F.conv2d(x, kernel, padding=1, groups=3)
        grid = torch.zeros(len(x), 8, 8, 2, device=DEVICE)  # fault[cpu]: zeros(device='cuda')
        # remedy: grid = torch.zeros(len(x), 8, 8, 2, device=x.device)
        x = x + 0.1 * F.grid_sample(x, grid, align_corners=False)
        h = self.norm(self.stem(x)).relu()
        with torch.no_grad():
            told = self.teacher[0](x)
        return self.head((h + 0 * told).mean((2, 3)))
