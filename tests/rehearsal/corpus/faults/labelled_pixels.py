"""Segmentation with skips, a frozen norm of one's own and a loss on what is labelled."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(index))
        y = (x.sum(0) > 0).long()
        y[0, :] = 255
        if index % 11 == 10:
            y[:] = 255
        return x, y


class FrozenNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = torch.ones(width), torch.zeros(width)  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("weight", torch.ones(width)); self.register_buffer("bias", torch.zeros(width))

    def forward(self, x):
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class Down(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(a, b, 3, padding=1), FrozenNorm(b)

    def forward(self, x):
        return torch.tanh(self.norm(self.conv(x)))


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Down(3, 8), Down(8, 8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.attention = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Sigmoid())
        self.out = nn.Conv2d(8, 2, 1)
        self.deep = nn.Conv2d(8, 2, 1)  # fault[cpu]: no gradient
        # remedy: --cfg-options freeze=[deep]
        self.class_weights = [0.3, 0.7]
        self.seen = {"pixels": 0}  

    def loss(self, out, y):
        weight = torch.tensor(self.class_weights)  # fault[cuda]: device mismatch
        # remedy: weight = torch.tensor(self.class_weights, device=out.device)
        ce = F.cross_entropy(out, y, weight=weight, ignore_index=255)
        good = y != 255
        p = out.softmax(1)[:, 1][good]  # fault[cuda]: host sync
        # remedy: p = out.softmax(1)[:, 1] * good
        t = y[good].float()  # fault[cuda]: host sync
        # remedy: t = y.float() * good
        dice = 1 - 2 * (p * t).sum() / (p.sum() + t.sum() + 1)
        self.seen["pixels"] += good.sum()
        assert good.view(len(y), -1).any(1).all(), "an image without labels"  # fault[cpu,cuda]: raises; fault[cuda]: host sync
        # remedy: -
        return ce + dice

    def train_step(self, data, optimizer=None):
        x, y = data
        a = self.one(x)
        b = self.two(F.max_pool2d(a, 2))
        u = self.up(b)
        gate = self.attention(u)
        u += a  # fault[cpu,cuda]: changed in place
        # remedy: u = u + a
        gate += 1  # fault[cpu,cuda]: changed in place
        # remedy: gate = gate + 1
        u = u * gate
        out = self.out(u)
        deep = F.interpolate(self.deep(b), size=y.shape[-2:])
        loss = self.loss(out, y) + 0.4 * self.loss(deep.detach(), y)
        hist = torch.histc(out.argmax(1).float(), 2)  # fault[cuda]: histc
        # remedy: hist = torch.histc(out.argmax(1).float(), 2, 0, 1)
        iou = [float(v) for v in hist]  # fault[cuda]: host sync
        # remedy: iou = list(hist)
        place = torch.argwhere(out[0, 0] == out[0, 0].max())  # fault[cuda]: host sync
        # remedy: place = out[0, :1]
        return {"loss": loss, "log_vars": {"iou": iou[0], "place": len(place)}, "num_samples": len(x)}
