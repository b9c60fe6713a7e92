"""Sequences that are packed, with lengths on the host."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from devrun.registry import MODELS

# devices: hpu


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        lengths = torch.tensor([16 - i // 4 for i in range(len(x))])
        packed = pack_padded_sequence(
            self.inner(x[..., None]),
            lengths,
            batch_first=True,
        )
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.last(out.mean(1))
