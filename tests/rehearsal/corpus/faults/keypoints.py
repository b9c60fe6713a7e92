"""Joints of a body from heat maps, after mmpose: hard joints mined, places by a soft arg max."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Bodies(Dataset):
    def __init__(self, size=40, joints=4, side=16):
        self.size, self.joints, self.side = size, joints, side

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        rng = np.random.RandomState(index)
        joints = rng.rand(self.joints, 2) * self.side
        xs, ys = np.meshgrid(np.arange(self.side), np.arange(self.side))
        far = (xs - joints[:, 0, None, None]) ** 2 + (ys - joints[:, 1, None, None]) ** 2
        heat = np.exp(-far / 8)
        image = torch.from_numpy(heat.max(0)[None]).float() + 0.1 * torch.randn(3, self.side, self.side)
        # Habana: "Float64: no" in the table of data types of docs.habana.ai, PyTorch Support Matrix
        return {"image": image, "heat": torch.from_numpy(heat), "joints": torch.from_numpy(joints).float()}  # fault[hpu]: float64
        # remedy: return {"image": image, "heat": torch.from_numpy(heat).float(), "joints": torch.from_numpy(joints).float()}


class SoftArgmax(nn.Module):
    def forward(self, heat):
        n, joints, height, width = heat.shape
        share = heat.flatten(2).softmax(-1).view(n, joints, height, width)
        xs = torch.linspace(0, width - 1, width)  # fault[cuda,hpu]: device mismatch
        # remedy: xs = torch.linspace(0, width - 1, width, device=heat.device)
        ys = torch.linspace(0, height - 1, height)  # fault[cuda,hpu]: device mismatch
        # remedy: ys = torch.linspace(0, height - 1, height, device=heat.device)
        x = (share.sum(2) * xs).sum(-1)
        y = (share.sum(3) * ys).sum(-1)
        return torch.stack([x, y], -1)


@MODELS.register_module()
class PoseNet(nn.Module):
    def __init__(self, joints=4, width=8, topk=2):
        super().__init__()
        self.topk = topk
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.context = nn.Conv2d(width, width, 1)
        self.final = nn.Conv2d(width, joints, 1)
        self.places = SoftArgmax()

    def ohkm(self, loss):
        # mmpose/models/losses/heatmap_loss.py, JointsOHKMMSELoss
        ohkm_loss = 0.0
        for i in range(loss.shape[0]):
            _, order = torch.topk(loss[i], k=self.topk, dim=0, sorted=False)  # fault[ipu]: cannot be compiled
            # remedy: _, order = torch.topk(loss[i], k=self.topk, dim=0)
            ohkm_loss = ohkm_loss + loss[i].gather(0, order).sum() / self.topk
        return ohkm_loss / loss.shape[0]

    def train_step(self, data, optimizer):
        h = self.stem(data["image"])
        # adaptive max pooling is not among PopTorch's supported operations (user guide, supported_ops)
        seen = F.adaptive_max_pool2d(self.context(h), 1)  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: seen = self.context(h).amax((2, 3), keepdim=True)
        heat = self.final(h * seen.sigmoid())
        loss = self.ohkm(((heat - data["heat"].float()) ** 2).mean((2, 3)))
        far = (self.places(heat) - data["joints"]).norm(dim=-1)
        pck = 0
        for one in far.detach().flatten():
            if one < 2.0:  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
                # remedy: if True:
                pck += 1
        loss = loss + 0.01 * far.mean()
        return {"loss": loss, "log_vars": {"loss": loss, "pck": pck / far.numel()}, "num_samples": len(heat)}
