"""Clouds of points: neighbours, rotations and a distance between sets."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        cloud = np.random.default_rng(index).normal(size=(12, 3))
        turn = np.linalg.qr(cloud[:3])[0]
        return cloud.astype("float32"), turn  # fault[hpu]: float64
        # remedy: return cloud.astype("float32"), turn.astype("float32")


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.point, self.turn = nn.Linear(6, 16), nn.Linear(16, 9)
        self.scale = torch.tensor([1.0, 1.0, 0.5])  # fault[cuda,hpu,ipu]: device mismatch
        # remedy: self.register_buffer("scale", torch.tensor([1.0, 1.0, 0.5]))

    def train_step(self, data, optimizer):
        cloud, goal = data
        cloud = cloud * self.scale
        apart = (cloud[:, :, None] - cloud[:, None]).square().sum(3)
        near = apart.topk(3, largest=False).indices
        near = torch.gather(cloud, 1, near[:, :, :1].expand(-1, -1, 3))
        h = F.relu(self.point(torch.cat([cloud, near - cloud], 2))).amax(1)
        raw = self.turn(h).view(-1, 3, 3)
        u, _, v = torch.linalg.svd(raw)  # fault[cuda]: svd; fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: u, _, v = raw, 0, torch.eye(3, device=raw.device)
        turn = u @ v
        sign = torch.linalg.det(turn)  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: sign = turn[:, 0, 0]
        angle = torch.acos(((turn * goal.float()).sum((1, 2)) / 4).clamp(-0.9, 0.9))
        if not torch.isfinite(angle).all():  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
            # remedy: if False:
            angle = torch.zeros_like(angle)
        grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 2)] * 3)  # fault[cuda,hpu]: device mismatch
        # remedy: grid = torch.zeros(8, 3, device=h.device)
        cover = (cloud[:, :, None] - grid).abs().sum(3).amin(1).mean()
        loss = angle.mean() + 0.01 * sign.mean() + 0.1 * cover
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(cloud)}
