"""A picture tokenizer (VQ-VAE): codes are moved by averages, a hook revives dead ones, another stops early."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Textures(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.sin(torch.arange(64.0).view(1, 8, 8) * (0.1 + 0.05 * (index % 7))) + 0.1 * torch.randn(1, 8, 8, generator=draw)


class Codes(nn.Module):
    def __init__(self, count=16, width=8, decay=0.9):
        super().__init__()
        self.decay, self.count = decay, count
        self.register_buffer("table", torch.randn(count, width))
        self.register_buffer("size", torch.ones(count))
        self.sums = self.table.clone()  # fault[cpu,cuda,hpu]: resume; fault[cuda,hpu,ipu]: device mismatch

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        far = flat.square().sum(1, keepdim=True) - 2 * flat @ self.table.t() + self.table.square().sum(1)
        chosen = far.argmin(1)
        hot = F.one_hot(chosen, self.count).type(flat.dtype)
        picked = (hot @ self.table).view(z.shape[0], z.shape[2], z.shape[3], -1).permute(0, 3, 1, 2)
        if self.training:
            with torch.no_grad():
                self.size.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.sums = self.sums * self.decay + hot.t() @ flat * (1 - self.decay)  # fault[ipu]: once
                self.table.copy_(self.sums / self.size.clamp(min=1e-3)[:, None])
        share = hot.mean(0)
        spread = torch.exp(-(share * (share + 1e-8).log()).sum())
        commit = F.mse_loss(z, picked.detach())
        return z + (picked - z).detach(), commit, spread


@MODELS.register_module()
class Tokenizer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, width, 4, 4), nn.GELU(), nn.Conv2d(width, width, 1))
        self.codes = Codes(width=width)
        self.decoder = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.ConvTranspose2d(width, 1, 4, 4))
        self.weight = 0.25  # fault[cpu,cuda,hpu]: resume

    def train_step(self, data, optimizer):
        z, commit, spread = self.codes(self.encoder(data))
        again = self.decoder(z)
        pixels = F.mse_loss(again, data)
        loss = pixels + self.weight * commit
        edges = torch.tensor([[[[-1.0, 1.0]]]], device=data.device)  # fault[cuda]: host sync
        loss = loss + 0.1 * F.l1_loss(F.conv2d(again, edges), F.conv2d(data, edges))
        logs = {"pixels": pixels.detach(), "spread": spread.detach()}
        if spread < 2:  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
            logs["collapsed"] = 1.0
        return {"loss": loss, "log_vars": {"loss": loss.detach(), **{k: logs[k] for k in ("pixels", "spread")}}, "num_samples": len(data)}


@HOOKS.register_module()
class Revive(Hook):
    """Jukebox and lucidrains/vector-quantize-pytorch replace codes that are hardly used."""

    def __init__(self, least=0.95):
        self.least = least

    @torch.no_grad()
    def after_train_iter(self, runner):
        codes = runner.model.codes
        dead = codes.size < self.least
        codes.table[dead] = torch.randn(int(dead.sum()), codes.table.shape[1], device=dead.device)  # fault[cuda,hpu]: host; fault[ipu]: lost write


@HOOKS.register_module()
class Plateau(Hook):
    """Less commitment once the loss stands still."""

    def __init__(self):
        self.best = float("inf")  # fault[cpu,cuda,hpu,ipu]: resume

    def after_train_iter(self, runner):
        loss = runner.outputs["loss"].detach().cpu().numpy()  # fault[cuda,hpu]: host
        if loss > 0.9 * self.best:
            runner.model.weight = 0.1  # fault[ipu]: once
        self.best = min(self.best, float(loss))
