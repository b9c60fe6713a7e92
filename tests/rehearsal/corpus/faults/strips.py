"""Strips of a spectrogram are masked where Python says, in a lazy graph or a captured one."""

import random

import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Calls(Dataset):
    def __init__(self, size=32, kinds=4):
        self.size, self.kinds = size, kinds

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        spectrum = torch.rand(33, 40, generator=torch.Generator().manual_seed(i))
        spectrum[8 * (i % self.kinds)] += 2
        return spectrum, i % self.kinds


class MaskStrips(nn.Module):
    """SpecAugment: a strip of time and one of frequency are silent, the same for a batch."""

    def forward(self, spectrum, time=6, frequency=4):
        if not self.training:
            return spectrum
        places = torch.arange(40, device=spectrum.device)
        spectrum = spectrum.clone()
        t = random.randint(0, spectrum.shape[2] - time)  # fault[ipu]: draws
        # remedy[ipu]: t = 3
        f = random.randint(0, spectrum.shape[1] - frequency)  # fault[ipu]: draws
        # remedy[ipu]: f = 2
        spectrum[:, :, t : t + time] = 0  # fault[hpu]: compiled again
        # remedy[hpu]: spectrum = spectrum * ((places - t).abs() > time // 2)
        spectrum[:, f : f + frequency] = 0  # fault[hpu]: compiled again
        # remedy[hpu]: spectrum = spectrum * ((places[:33] - f).abs() > frequency // 2)[:, None]
        return spectrum


@MODELS.register_module()
class CallNet(nn.Module):
    def __init__(self, kinds=4, width=16):
        super().__init__()
        self.mask = MaskStrips()
        self.rnn = nn.GRU(33, width, batch_first=True)
        self.head = nn.Linear(width, kinds)

    def forward(self, spectrum):
        scale = spectrum.flatten(1).nanmedian(1).values  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: scale = spectrum.flatten(1).mean(1)
        spectrum = self.mask(spectrum / scale[:, None, None])
        states, _ = self.rnn(spectrum.transpose(1, 2))
        return self.head(states.mean(1))
