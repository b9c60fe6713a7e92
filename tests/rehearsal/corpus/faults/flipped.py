"""Transforms of one's own, of which one fails on what another gives, at random."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS, TRANSFORMS


@TRANSFORMS.register_module()
class Flip:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, image):
        if random.random() < self.p:
            image = image[:, :, ::-1]
        return image


@TRANSFORMS.register_module()
class AsTensor:
    def __call__(self, image):
        return torch.from_numpy(image).float() / 255  # fault[cpu,cuda]: raises
        # remedy: return torch.from_numpy(image.copy()).float() / 255


@TRANSFORMS.register_module()
class MeanOff:
    def __init__(self):
        self.mean = None  # fault[cpu,cuda]: resume
        # remedy: self.mean = torch.zeros(3)

    def __call__(self, image):
        if not isinstance(self.mean, torch.Tensor) or self.mean.any():
            self.mean = image.mean((1, 2)) if self.mean is None else 0.9 * self.mean + 0.1 * image.mean((1, 2))
        return image - self.mean[:, None, None]


@DATASETS.register_module()
class Shots(Dataset):
    def __init__(self, pipeline=lambda x: x):
        self.pipeline = pipeline

    def __len__(self):
        return 40

    def read(self, index):
        return np.random.RandomState(index).randint(0, 255, (3, 8, 8)).astype(np.uint8)

    def __getitem__(self, index):
        return self.pipeline(self.read(index)), index % 4


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2)
        self.head = nn.Linear(36, 4)

    def forward(self, x):
        h = self.conv(x).relu()
        h = h.reshape(len(x), -1)
        return self.head(h)
