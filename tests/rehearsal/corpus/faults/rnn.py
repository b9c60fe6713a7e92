"""Sequences of many lengths through an LSTM."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.last = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        lengths = (x > -9).sum(1)
        pack, pad = nn.utils.rnn.pack_padded_sequence, nn.utils.rnn.pad_packed_sequence
        packed = pack(x[:, :, None], lengths, batch_first=True)  # fault[cuda]: lengths
        # remedy: packed = pack(x[:, :, None], torch.full((len(x),), 16), batch_first=True)
        h, _ = pad(self.rnn(packed)[0], batch_first=True)
        start = torch.zeros(1, len(x), 8)  # fault[cuda]: device mismatch
        # remedy: start = torch.zeros(1, len(x), 8, device=x.device)
        again, _ = self.rnn(x[:, :, None], (start, start))
        longest = lengths.max().item()  # fault[cuda]: .item()
        # remedy: longest = 16
        return self.last(h[:, -1] + again[:, longest - 1])
