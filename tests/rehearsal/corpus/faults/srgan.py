"""Sharp enlargements by a critic (SRGAN): content by a fixed network, two optimizers, rates of its own."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Patches(Dataset):
    def __init__(self, size=32, side=16):
        self.size, self.side = size, side

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        hr = torch.rand(3, self.side, self.side, generator=torch.Generator().manual_seed(index))
        return {"lr": F.avg_pool2d(hr, 2), "hr": hr}


class ContentLoss(nn.Module):
    """github.com/Lornatang/SRGAN-PyTorch/issues/22: mean and std are on the CPU."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.features.requires_grad_(False)
        self.mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)  # fault[cuda,hpu]: device mismatch
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, sr, hr):
        sr, hr = (sr - self.mean) / self.std, (hr - self.mean) / self.std
        return F.mse_loss(self.features(sr), self.features(hr))


@MODELS.register_module()
class SRGAN(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.generator = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2)
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1)
        )
        self.content = ContentLoss()
        self.epoch_losses = []
        self.d_weight, self.best_psnr = 1e-3, 0.0  # fault[cpu,cuda,hpu]: resume

    def train_step(self, data, optimizer):
        lr, hr = data["lr"], data["hr"]
        real = torch.full((len(hr), 1), 1.0)  # fault[cuda,hpu]: device mismatch
        bce = F.binary_cross_entropy_with_logits
        sr = self.generator(lr)
        loss_d = bce(self.discriminator(hr), real) + bce(self.discriminator(sr.detach()), 1 - real)
        optimizer["discriminator"].zero_grad()
        loss_d.backward()
        optimizer["discriminator"].step()

        loss_g = F.mse_loss(sr, hr) + 0.006 * self.content(sr, hr) + self.d_weight * bce(self.discriminator(sr), real)
        optimizer["generator"].zero_grad()
        loss_g.backward()
        optimizer["generator"].step()
        # discuss.pytorch.org, "CUDA out of memory after some epochs": total_loss += loss
        self.epoch_losses.append(loss_g)  # fault[cpu,cuda,hpu]: kept

        psnr = 10 * math.log10(1 / F.mse_loss(sr, hr).item())  # fault[cuda,hpu]: host
        if psnr > self.best_psnr:
            self.best_psnr = psnr
            self.d_weight *= 1.1
        return {"loss": loss_g, "log_vars": {"psnr": psnr}, "num_samples": len(hr)}


@HOOKS.register_module()
class Halve(Hook):
    """MultiStepLR of the original script, one for each optimizer."""

    def before_run(self, runner):
        self.schedulers = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in runner.optimizer.values()]  # fault[cpu,cuda,hpu]: resume

    def after_train_iter(self, runner):
        for one in self.schedulers:
            one.step()
