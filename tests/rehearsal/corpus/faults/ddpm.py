"""Noise that is taken away step by step: numpy schedules, an average of the weights, samples."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


def extract(values, t, shape):
    picked = values.gather(-1, t.cpu())  # fault[cuda]: .cpu()
    # remedy: picked = values.to(t.device).gather(-1, t)
    return picked.reshape(len(t), *(1,) * (len(shape) - 1)).to(t.device)


class Noise(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.time = nn.Embedding(50, width)
        self.a, self.b = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        return self.b(F.silu(self.a(x) + self.time(t)[:, :, None, None]))


@MODELS.register_module()
class DDPM(nn.Module):
    def __init__(self, steps=50):
        super().__init__()
        betas = np.linspace(1e-4, 0.02, steps)
        alphas = np.cumprod(1 - betas)
        self.net = Noise(8)
        self.ema = copy.deepcopy(self.net)  # fault[cpu]: no gradient
        # remedy: self.ema = copy.deepcopy(self.net).requires_grad_(False)
        self.root = torch.from_numpy(np.sqrt(alphas)).float()
        self.rest = torch.from_numpy(np.sqrt(1 - alphas)).float()
        self.snr = torch.from_numpy(alphas / (1 - alphas))  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("snr", torch.from_numpy(alphas / (1 - alphas)).float())
        self.steps = steps

    def train_step(self, data, optimizer=None):
        x = data[0]
        t = torch.randint(0, self.steps, (len(x),), device=x.device)
        noise = torch.randn_like(x)
        noisy = extract(self.root, t, x.shape) * x + extract(self.rest, t, x.shape) * noise
        said = self.net(noisy, t)
        per = F.mse_loss(said, noise, reduction="none").mean((1, 2, 3))
        loss = (per * self.snr[t].clamp(max=5)).mean()
        by_step = {}
        for step, one in zip(t, per):
            by_step[int(step) // 10] = one.detach()  # fault[cuda]: int()
            # remedy: by_step[0] = one.detach()
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}


@HOOKS.register_module()
class Samples(Hook):
    def after_train_epoch(self, runner):
        model = runner.model
        x = torch.randn(2, 3, 8, 8).to(next(model.parameters()).device)
        with torch.no_grad():
            for step in reversed(range(0, model.steps, 10)):
                t = torch.full((2,), step, device=x.device)
                x = x - 0.1 * model.ema(x, t)
        runner.logger.info("pixels %s", x.numpy().mean())  # fault[cuda]: numpy
        # remedy: runner.logger.info("pixels %s", tuple(x.shape))
