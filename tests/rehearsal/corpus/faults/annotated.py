"""Denoising diffusion, after "The Annotated Diffusion Model"."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS

STEPS = 50
betas = torch.linspace(1e-4, 0.02, STEPS)
alphas_bar = torch.cumprod(1.0 - betas, dim=0)


@DATASETS.register_module()
class Digits(Dataset):
    def __init__(self, size=32):
        draw = torch.Generator().manual_seed(9)
        self.images = torch.rand(size, 1, 16, 16, generator=draw)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i] * 2 - 1}


def extract(values, t, shape):
    out = values.gather(-1, t.cpu())  # fault[cuda,hpu]: host
    # remedy: out = values.to(t.device, non_blocking=True).gather(-1, t)
    return out.reshape(len(t), *((1,) * (len(shape) - 1))).to(t.device)


class SinusoidalPositionEmbeddings(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        half = self.dim // 2
        scale = math.log(10000) / (half - 1)
        rates = torch.exp(torch.arange(half) * -scale)  # fault[cuda,hpu]: device mismatch
        # remedy: rates = torch.exp(torch.arange(half, device=time.device) * -scale)
        angles = time[:, None] * rates[None, :]
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


class Block(nn.Module):
    def __init__(self, inside, outside, dim):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.second = nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(dim, outside)
        self.norm = nn.GroupNorm(4, outside)

    def forward(self, x, t):
        h = self.norm(F.silu(self.first(x)))
        h = h + self.time(t)[:, :, None, None]
        return F.silu(self.second(h))


@MODELS.register_module()
class Ddpm(nn.Module):
    def __init__(self, width=16, dim=16):
        super().__init__()
        self.embed = nn.Sequential(SinusoidalPositionEmbeddings(dim), nn.Linear(dim, dim), nn.GELU())
        self.down, self.up = Block(1, width, dim), Block(width, width, dim)
        self.out = nn.Conv2d(width, 1, 1)
        self.generator = torch.Generator().manual_seed(0)  # fault[cpu,cuda,hpu]: resume
        # remedy: self.generator = None

    def predict(self, x, t):
        e = self.embed(t)
        return self.out(self.up(self.down(x, e), e))

    def forward(self, image):
        t = torch.randint(0, STEPS, (len(image),), device=image.device)
        noise = torch.randn(image.shape, generator=self.generator, device=image.device)  # fault[cuda,hpu]: Generator
        # remedy: noise = torch.randn_like(image)
        keep = extract(alphas_bar, t, image.shape)
        noisy = keep.sqrt() * image + (1 - keep).sqrt() * noise
        with torch.cuda.amp.autocast():  # fault[cpu]: autocast; fault[hpu]: cuda
        # remedy: if True:
            guess = self.predict(noisy, t)
        each = F.mse_loss(guess.float(), noise, reduction="none").mean((1, 2, 3))
        return {"loss": each.mean(), "each": each.detach(), "t": t}

    def train_step(self, data, optimizer):
        out = self(**data)
        logs = {"loss": out["loss"].detach()}
        return {**out, "log_vars": logs, "num_samples": len(data["image"])}


@HOOKS.register_module()
class LossPerTime(Hook):
    """The loss of the early, middle and late times, like the histograms of guided-diffusion."""

    def __init__(self):
        self.seen = {0: [], 1: [], 2: [], 3: []}

    def after_train_iter(self, runner):
        each, quarter = runner.outputs["each"], runner.outputs["t"] * 4 // STEPS
        for time, loss in zip(quarter.tolist(), each.tolist()):  # fault[cuda,hpu]: host
            # remedy: for time, loss in enumerate(each):
            self.seen[time] = [*self.seen[time][-20:], loss]
        if torch.isnan(each).any():  # fault[cuda,hpu]: host
            # remedy: if False:
            raise FloatingPointError("the loss is no number")
