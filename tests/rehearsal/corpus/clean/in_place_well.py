"""In-place work, detached parts and short batches, all of them right."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import Dataset

from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS

# devices: cpu cuda


@DATASETS.register_module()
class Own(Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 21

    def __getitem__(self, index):
        if index not in self.cache:
            generator = torch.Generator().manual_seed(index)
            self.cache[index] = torch.randn(3 + index % 4, 6, generator=generator)
        return self.cache[index], index % 3


@COLLATE_FUNCTIONS.register_module()
def padded(samples):
    rows, kinds = zip(*samples)
    lengths = [len(row) for row in rows]
    return nn.utils.rnn.pad_sequence(rows, True), lengths, torch.tensor(kinds)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 8, batch_first=True)
        self.start = nn.Parameter(torch.zeros(1, 1, 8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)
        self.probe = nn.Linear(8, 3)
        self.last = None

    def train_step(self, data, optimizer=None):
        x, lengths, y = data
        x = x.clone()
        x[:, 0] = 0
        x += 0.01 * torch.randn_like(x)
        packed = pack_padded_sequence(x, torch.tensor(lengths), True, enforce_sorted=False)
        out, h = self.rnn(packed, self.start.expand(-1, len(x), -1).contiguous())
        out, _ = pad_packed_sequence(out, True)
        h = out.sum(1)  # what pads them is 0
        h = F.relu(self.norm(h), inplace=True)
        loss = F.cross_entropy(self.head(h), y)
        loss = loss + F.cross_entropy(self.probe(h.detach()), y)
        self.last = h.detach()
        with torch.no_grad():
            self.head.weight.clamp_(-2, 2) if self.last is None else None
        return {"loss": loss, "log_vars": {"loss": loss.detach()}, "num_samples": len(x)}
