"""Finds a speaker among microphones: phases of a spectrum, and a map of directions."""

import math

import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, LOSSES, MODELS

MICS, SAMPLES, DIRECTIONS = 4, 128, 9


@DATASETS.register_module()
class Room(Dataset):
    def __init__(self, size=32):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(i)
        direction = i % DIRECTIONS
        source = torch.randn(SAMPLES + MICS * DIRECTIONS, generator=gen)
        waves = [source[m * direction : m * direction + SAMPLES] for m in range(MICS)]
        return torch.stack(waves), direction


class Phases(nn.Module):
    """Cosine and sine of the phase between each microphone and the first."""

    def __init__(self, size=32):
        super().__init__()
        self.size, angle = size, torch.outer(torch.arange(size), torch.arange(size // 2 + 1))
        self.register_buffer("window", torch.hann_window(size))
        angle = angle * 2 * math.pi / size
        self.register_buffer("turns", torch.cat([angle.cos(), -angle.sin()], 1))

    def by_matrix(self, frames):
        a, b = (frames @ self.turns).chunk(2, -1)
        real = a[:, 1:] * a[:, :1] + b[:, 1:] * b[:, :1]
        return torch.cat([real, b[:, 1:] * a[:, :1] - a[:, 1:] * b[:, :1]], 1)

    def forward(self, waves):
        frames = waves.unfold(-1, self.size, self.size // 2) * self.window
        spectrum = torch.fft.rfft(frames)  # fault[hpu]: on the host; fault[ipu]: fft
        # remedy: return self.by_matrix(frames)
        cross = spectrum[:, 1:] * spectrum[:, :1].conj()
        cross = cross / (cross.abs() + 1e-6)
        return torch.cat([cross.real, cross.imag], 1)


@MODELS.register_module()
class Locator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.phases = Phases()
        self.net = nn.Sequential(nn.Conv2d(2 * (MICS - 1), width, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(width * 17, DIRECTIONS)

    def forward(self, waves):
        x = self.net(self.phases(waves)).mean(2)
        return self.head(x.flatten(1))


@LOSSES.register_module()
class Circular(nn.Module):
    """Neighbours of the true direction are half right."""

    def __init__(self, width=1.0):
        super().__init__()
        angle = torch.arange(DIRECTIONS) * 2 * math.pi / DIRECTIONS
        near = ((angle[:, None] - angle).cos() - 1) / width
        self.table = near.softmax(-1)  # fault[cuda,hpu,ipu]: device mismatch
        # remedy: self.register_buffer("table", near.softmax(-1))

    def forward(self, scores, direction):
        loss = -(self.table[direction] * scores.log_softmax(-1)).sum(-1)
        return loss[loss.topk(6).indices].mean()
