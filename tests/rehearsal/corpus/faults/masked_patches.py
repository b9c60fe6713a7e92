"""A masked autoencoder: patches that are shuffled and left out, positions by sine, half precision."""

import numpy as np
import torch
from torch import nn

from devrun.registry import MODELS


def sincos(count, width):
    where = np.arange(count)[:, None] / 10000 ** (np.arange(width // 2)[None] / (width // 2))
    return torch.from_numpy(np.concatenate([np.sin(where), np.cos(where)], 1))


@MODELS.register_module()
class MAE(nn.Module):
    def __init__(self, width=16, keep=0.25):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 2, 2)
        self.position = sincos(16, width)  # fault[cuda,hpu]: device mismatch
        # remedy: self.register_buffer("position", sincos(16, width).float())
        self.register_buffer("order", sincos(16, width))  # fault[hpu]: float64
        # remedy: self.register_buffer("order", sincos(16, width).float())
        self.block = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True, dropout=0.0)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.cls = nn.Parameter(torch.zeros(1, 1, width))  # fault[cpu]: no gradient
        # remedy: --cfg-options freeze=[cls]
        self.out = nn.Linear(width, 12)
        self.keep = keep

    def mask(self, x):
        n, length, _ = x.shape
        keep = int(length * self.keep)
        noise = torch.rand(n, length)  # fault[cuda,hpu]: device mismatch
        # remedy: noise = torch.rand(n, length, device=x.device)
        shuffle = noise.argsort(1)
        restore = shuffle.argsort(1)
        kept = shuffle[:, :keep]
        x = torch.gather(x, 1, kept[:, :, None].expand(-1, -1, x.shape[2]))
        mask = torch.ones(n, length, device=x.device)
        mask[:, :keep] = 0
        return x, torch.gather(mask, 1, restore), restore

    def train_step(self, data, optimizer=None):
        image = data[0]
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = x + self.position.float()
        x, mask, restore = self.mask(x)
        x = self.block(x)
        rest = self.mask_token.expand(len(x), 16 - x.shape[1], -1)
        x = torch.cat([x, rest], 1)
        x = torch.gather(x, 1, restore[:, :, None].expand(-1, -1, x.shape[2]))
        said = self.out(x + self.order.to(x.dtype))
        goal = image.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(len(image), 16, 12)
        loss = ((said - goal).pow(2).mean(-1) * mask).sum() / mask.sum().item()  # fault[cuda,hpu]: host
        # remedy: loss = ((said - goal).pow(2).mean(-1) * mask).sum() / mask.sum()
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(image)}
