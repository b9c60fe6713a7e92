"""Diffusion of small pictures; the schedule is NumPy's."""

import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS

STEPS = 50


@DATASETS.register_module()
class Sketches(Dataset):
    def __init__(self, size=48):
        draw = torch.Generator().manual_seed(4)
        self.images = torch.randn(size, 1, 8, 8, generator=draw)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i]}


@MODELS.register_module()
class Denoiser(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.time = nn.Linear(16, width)
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.last = nn.Conv2d(width, 1, 3, padding=1)
        self.kept = np.cumprod(1 - np.linspace(1e-4, 0.02, STEPS))

    def extract(self, t, like):
        table = torch.from_numpy(self.kept).to(like.device)  # fault[hpu]: float64; fault[cuda]: host sync
        # remedy[hpu]: table = torch.from_numpy(self.kept).float().to(like.device)
        # remedy[cuda]: table = torch.from_numpy(self.kept).to(like.device, non_blocking=True)
        return table[t].float().view(-1, 1, 1, 1)

    def embed(self, t):
        rates = torch.exp(torch.arange(8) * -0.5)  # fault[cuda,hpu]: device mismatch
        # remedy: rates = torch.exp(torch.arange(8, device=t.device) * -0.5)
        angles = t[:, None].float() * rates
        return torch.cat([angles.sin(), angles.cos()], 1)

    def forward(self, image):
        t = torch.randint(0, STEPS, (len(image),))
        t = t.cuda()  # fault[cpu,hpu]: hard-wired cuda; fault[cuda]: host sync
        # remedy[cpu,hpu]: t = t.to(image.device)
        # remedy[cuda]: t = torch.randint(0, STEPS, (len(image),), device=image.device)
        noise = torch.randn(image.shape).type_as(image)
        share = self.extract(t, image)
        seen = share.sqrt() * image + (1 - share).sqrt() * noise
        h = self.first(seen) + self.time(self.embed(t))[..., None, None]
        loss = (self.last(h.relu()) - noise).square().mean((1, 2, 3))
        late = loss[t > STEPS // 2]  # fault[cuda,hpu]: host
        # remedy: late = loss * (t > STEPS // 2)
        self.late = late.sum().detach()
        return {"loss": loss.mean()}


@HOOKS.register_module()
class Shadow(Hook):
    """An average of the weights, for the pictures that are shown at the end."""

    def before_run(self, runner):
        self.shadow = copy.deepcopy(runner.model)  # fault[cpu,cuda,hpu]: resume

    def after_train_iter(self, runner):
        with torch.no_grad():
            for mine, other in zip(self.shadow.parameters(), runner.model.parameters()):
                mine.mul_(0.99).add_(other, alpha=0.01)
        print(f"late {runner.model.late:.3f}")  # fault[cuda,hpu]: host
        # remedy: runner.log_buffer.update({"late": runner.model.late})
