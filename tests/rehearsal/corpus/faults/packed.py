"""Faults behind a packed sequence and behind one another, with a cycle of scales."""

import itertools

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS

SCALES = itertools.cycle([1.0, 0.5])  # fault[hpu]: resume
# remedy: SCALES = itertools.repeat(1.0)


@DATASETS.register_module()
class KSeq(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.randn(9, 6, generator=draw), 4 + index % 6, index % 3


@MODELS.register_module()
class KSeqNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 10, batch_first=True, bidirectional=True)
        self.attend = nn.MultiheadAttention(20, 2, batch_first=True)
        self.out = nn.Linear(20, 3)
        self.log = []

    def train_step(self, data, optimizer):
        x, lengths, y = data
        x = x * next(SCALES)  # fault[ipu]: once
        # remedy: -
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: packed = x
        h, _ = self.rnn(packed)  # fault[ipu]: cannot be compiled
        # remedy: h = torch.cat([packed] * 4, 2)[..., :20]
        h, _ = pad_packed_sequence(h, batch_first=True, total_length=9)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: -
        past = torch.arange(9, device=x.device)[None] >= lengths[:, None]
        h, weights = self.attend(h, h, h, key_padding_mask=past)
        top = weights.flatten(1).kthvalue(5, dim=1).values  # fault[ipu]: cannot be compiled
        # remedy[ipu]: top = weights.flatten(1).amax(1)
        last = h[range(len(h)), [n - 1 for n in lengths.tolist()]]  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: last = h[:, -1]
        out = self.out(last)
        loss = F.cross_entropy(out, y, reduction="none")
        weak = loss[loss > loss.mean()]  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: weak = loss
        wrong = torch.argwhere(out.argmax(1) != y)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: wrong = out
        self.log.append(weak.detach().mean().item())  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: -
        span = torch.linalg.qr(h.detach()[0])[1].diagonal().sum()  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: span = h.detach().sum()
        total = loss.mean() + 0 * (span + top.sum())
        return {"loss": total, "log_vars": {"loss": total.detach()}, "num_samples": len(x)}
