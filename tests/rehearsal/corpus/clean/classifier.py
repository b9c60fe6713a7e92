"""Layers of torch's in a row, buffers, and lengths that stay on the host."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 4)
        )
        self.lstm = nn.LSTM(1, 4, batch_first=True)
        self.lengths = torch.arange(16, 8, -1)
        self.step = torch.tensor(0)
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]

    def forward(self, x):
        host = torch.tensor([1, 2, 3])
        count = int(host.sum()) + len(host.tolist()) + host.numpy().sum()
        text = f"{host} {host.max()}"
        pack = nn.utils.rnn.pack_padded_sequence
        words = pack(x[:, :, None], self.lengths[: len(x)], batch_first=True)
        words, lengths = nn.utils.rnn.pad_packed_sequence(self.lstm(words)[0], True)
        longest = lengths.max().item()
        self.step += 1
        count = count + self.step.item() + torch.arange(3)[-1].item()
        x[:, 0] = 0.0
        x[x > 1e9] = 0.0
        x = x[torch.randperm(len(x), device=x.device)]
        x = x * torch.ones(16).type_as(x) + x.new_ones(1) * torch.tensor(2.0)
        x = torch.where(x > 5, x, torch.zeros_like(x)) + torch.zeros(16).to(x, non_blocking=True)
        x = x.masked_fill(x > 9, float("-inf")).softmax(1).cumsum(1).clamp(min=0.0)
        x = x + F.one_hot(x.argmax(1), 16) + torch.rand(16).to(x.device, non_blocking=True)
        return self.net(x) + 0 * words.mean() + 0 * (count + longest + len(text))
