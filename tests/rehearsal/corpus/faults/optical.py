"""Optical flow: two frames, and a flow that warps the second onto the first."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, LOSSES, MODELS


@DATASETS.register_module()
class Moves(Dataset):
    """Frames before and after a move by whole pixels; the flow is zero where none moved."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        first = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(i))
        second, flow = torch.roll(first, i % 3, 2), torch.zeros(2, 8, 8)
        flow[0] = i % 3
        return torch.cat([first, second]), torch.cat([first, second, flow])


class Visible(torch.autograd.Function):
    """1 where two images agree; the gradient passes near the threshold."""

    @staticmethod
    def forward(ctx, difference, threshold):
        ctx.save_for_backward(difference, threshold)
        return (difference < threshold).float()

    @staticmethod
    def backward(ctx, grad):
        difference, threshold = ctx.saved_tensors
        width = 2 * threshold.item()  # fault[cuda]: host sync
        # remedy: width = 2 * threshold
        near = (difference - threshold).abs() < width
        return -grad * near / width, None


@MODELS.register_module()
class FlowNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(width, 2, 3, padding=1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, frames):
        return self.head(self.net(frames))


@LOSSES.register_module()
class FlowLoss(nn.Module):
    def __init__(self, size=8, ramp=20):
        super().__init__()
        axis = torch.linspace(-1, 1, size)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
        self.register_buffer("grid", grid, persistent=False)
        self.register_buffer("threshold", torch.tensor(0.2))

    def forward(self, flow, target):
        first, second, truth = target[:, :1], target[:, 1:2], target[:, 2:]
        where = self.grid + flow.permute(0, 2, 3, 1) * (2 / (flow.shape[-1] - 1))
        warped = F.grid_sample(second, where, align_corners=True)
        difference = (warped - first).abs()
        visible = Visible.apply(difference, self.threshold)
        photometric = (difference * visible).mean() + 0.1 * (1 - visible).mean()
        distance = (flow - truth).pow(2).sum(1).sqrt()  # fault[cpu,cuda]: DivergedError
        # remedy: distance = (flow - truth).pow(2).sum(1).add(1e-8).sqrt()
        return distance.mean() + photometric
