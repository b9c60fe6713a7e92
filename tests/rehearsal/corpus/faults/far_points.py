"""Shapes of points, of which those far from each other are looked at; hooks that forget at a
resume how far they were."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks.base import Hook
from devrun.registry import DATASETS, HOOKS, MODELS


@DATASETS.register_module()
class Shapes(Dataset):
    def __init__(self, points=24):
        self.points = points

    def __len__(self):
        return 32

    def __getitem__(self, i):
        angle = torch.linspace(0, 6.28, self.points)
        flat = torch.stack([angle.cos(), angle.sin(), torch.zeros(self.points)], 1)
        return flat * torch.tensor([1.0, 1.0 + i % 3, 1.0]), i % 3


def far_apart(points, count):
    """Indices of points, each as far as can be from those before."""
    n, size, _ = points.shape
    chosen = torch.zeros(n, count, dtype=torch.long, device=points.device)
    distance = torch.full((n, size), 1e10)  # fault[cuda,hpu]: device mismatch
    # remedy: distance = torch.full((n, size), 1e10, device=points.device)
    last = torch.zeros(n, dtype=torch.long, device=points.device)
    rows = torch.arange(n, device=points.device)
    for i in range(count):
        chosen[:, i] = last
        new = (points - points[rows, last].unsqueeze(1)).square().sum(-1)
        distance = torch.min(distance, new)
        last = distance.max(-1)[1]
    return chosen


@MODELS.register_module()
class PointNet(nn.Module):
    def __init__(self, width=16, count=6):
        super().__init__()
        self.count = count
        self.lift, self.head = nn.Linear(3, width), nn.Linear(width, 3)
        self.register_buffer("jitter", torch.zeros(()))

    def train_step(self, data, optimizer=None):
        points, kind = data
        points = points + self.jitter * torch.randn_like(points)
        places = far_apart(points, self.count)
        few = points.gather(1, places.unsqueeze(-1).expand(-1, -1, 3))
        h = torch.relu(self.lift(few)).amax(1)
        order = np.argsort(np.arange(len(h)) % 3)  # is the same for each batch
        h = h[order]  # fault[cuda]: host sync
        # remedy: order = torch.arange(len(h), device=h.device).remainder(3).argsort(); h = h[order]
        loss = F.cross_entropy(self.head(h), kind[order])  # fault[cuda]: host sync
        # remedy: loss = F.cross_entropy(self.head(h), kind[order.to(kind.device) if torch.is_tensor(order) else order])
        return {"loss": loss, "log_vars": {"loss": loss.detach()}, "num_samples": len(kind)}


@HOOKS.register_module()
class LessJitter(Hook):
    def __init__(self, updates=30):
        self.updates, self.done = updates, 0  # fault[cpu,cuda,hpu]: resume
        # remedy: self.updates, self.done = 0, 1

    def before_train_iter(self, runner):
        self.done += 1
        runner.model.jitter.fill_(0.1 * max(0.0, 1 - self.done / max(1, self.updates)))  # fault[ipu]: lost write
        # remedy[ipu]: pass


@HOOKS.register_module()
class Path(Hook):
    def __init__(self):
        self.weights = []

    def after_train_iter(self, runner):
        flat = nn.utils.parameters_to_vector(runner.model.parameters()).detach()
        self.weights.append(flat)  # fault[cpu,cuda,hpu,ipu]: kept tensors
        # remedy: self.weights = [flat]
