"""Keywords in speech: features of its own from the waveform, and greedy reading of the letters."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Waves(Dataset):
    def __init__(self, size=40, samples=1600):
        self.size, self.samples = size, samples

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        wave = torch.randn(self.samples, generator=draw)
        letters = torch.randint(1, 9, (4,), generator=draw)
        return {"wave": wave, "letters": letters}


def mel_filters(bands, bins):
    """Triangles, as a numpy array, like librosa.filters.mel."""
    edges = np.linspace(0, bins - 1, bands + 2)
    grid = np.arange(bins)
    left = (grid[None] - edges[:-2, None]) / np.diff(edges)[:-1, None]
    right = (edges[2:, None] - grid[None]) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(left, right))


class LogMel(nn.Module):
    """From NVIDIA's Tacotron 2 and its many copies."""

    def __init__(self, n_fft=128, hop=64, bands=20):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.mel_basis = torch.from_numpy(mel_filters(bands, n_fft // 2 + 1)).float()  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("mel_basis", torch.from_numpy(mel_filters(bands, n_fft // 2 + 1)).float())

    def forward(self, wave):
        window = torch.hann_window(self.n_fft)  # fault[cuda]: device mismatch
        # remedy: window = torch.hann_window(self.n_fft, device=wave.device)
        spec = torch.stft(wave, self.n_fft, self.hop, window=window)  # fault[cpu,cuda]: raises
        # remedy: spec = torch.view_as_real(torch.stft(wave, self.n_fft, self.hop, window=window, return_complex=True))
        power = spec.pow(2).sum(-1)
        return torch.log(torch.matmul(self.mel_basis, power) + 1e-5)


@MODELS.register_module()
class Keywords(nn.Module):
    def __init__(self, bands=20, width=16, letters=9):
        super().__init__()
        self.features = LogMel(bands=bands)
        self.conv = nn.Conv1d(bands, width, 3, padding=1)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, letters)

    def forward(self, wave, letters):
        h = self.features(wave)
        if self.training:
            h = self.masked(h)
        h = F.relu(self.conv(h)).transpose(1, 2)
        scores = self.out(self.rnn(h)[0]).log_softmax(2)
        n, time = scores.shape[:2]
        lengths = torch.full((n,), time, dtype=torch.long, device=scores.device)
        goals = torch.full((n,), letters.shape[1], dtype=torch.long)
        loss = F.ctc_loss(scores.transpose(0, 1), letters, lengths, goals, zero_infinity=True)  # fault[cuda]: ctc_loss
        # remedy: loss = F.ctc_loss(scores.transpose(0, 1), letters, torch.full_like(goals, time), goals, zero_infinity=True)
        read = self.greedy(scores[0].argmax(1))
        return {"loss": loss, "scores": scores, "read": read}

    def masked(self, h):
        """SpecAugment, with one strip of time."""
        width = h.shape[2] // 8
        start = np.random.randint(0, h.shape[2] - width)
        keep = torch.ones(h.shape[2]).cuda()  # fault[cpu]: .cuda(); fault[cuda]: host sync
        # remedy: keep = torch.ones(h.shape[2], device=h.device)
        keep[start : start + width] = 0
        return h * keep

    def greedy(self, path):
        """The letters without blanks and repeats: the loop of many tutorials of CTC."""
        read, last = [], 0
        for letter in path:
            if letter != last and letter != 0:  # fault[cuda]: host sync
            # remedy: if True:
                read.append(letter)
            last = letter
        return len(read) / math.sqrt(len(path))
