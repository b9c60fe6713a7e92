"""A recurrent cell by hand, with a stop that depends on values."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS


@DATASETS.register_module()
class VRows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(6, 4, generator=torch.Generator().manual_seed(index)), index % 3


@MODELS.register_module()
class VRnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.top = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        state = torch.zeros(len(x), 8)  # fault[hpu]: device mismatch
        # remedy: state = torch.zeros(len(x), 8, device=x.device)
        states, turn = [], 0
        while state.abs().sum() < 1e6 and turn < 6:  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
            # remedy: while turn < 6:
            state = self.cell(x[:, turn], state)
            states.append(state)
            turn += 1
        h = torch.stack(states, 1)
        lengths = (x[:, :, 0] > -9).sum(1)
        out, _ = self.top(h)
        packed = pack_padded_sequence(h, lengths, batch_first=True)  # fault[hpu]: lengths; fault[ipu]: cannot be compiled
        # remedy: packed = h
        out = out + 0 * packed[0].sum()
        best = out.norm(dim=2).argmax(1)
        last = torch.stack([row[i] for row, i in zip(out, best.tolist())])  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: last = out.mean(1)
        return self.head(last)
