"""A tagger of words over an LSTM."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS


@DATASETS.register_module()
class VWords(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(1, 50, (12,), generator=torch.Generator().manual_seed(index))
        length = 6 + index % 6
        ids[length:] = 0
        return {"ids": ids, "length": length, "tags": ids % 5}


@MODELS.register_module()
class VText(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.rnn = nn.LSTM(16, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(32, 5)

    def train_step(self, data, optimizer):
        ids, tags = data["ids"], data["tags"]
        longest = int(data["length"].max())  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: longest = ids.shape[1]
        ids, tags = ids[:, :longest], tags[:, :longest]
        places = torch.arange(longest)  # fault[hpu]: device mismatch
        # remedy: places = torch.arange(longest, device=ids.device)
        mask = places[None] < data["length"][:, None]
        x = self.embed(ids)
        x, _ = self.rnn(x)  # fault[ipu]: cannot be compiled
        # remedy: x = torch.cat([x, x], -1)
        logits = self.out(x)
        one_hot = F.one_hot(tags)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: one_hot = F.one_hot(tags, num_classes=5)
        soft = 0.9 * one_hot[..., :5] + 0.02
        losses = -(soft * logits.log_softmax(-1)).sum(-1)
        loss = torch.masked_select(losses, mask).mean()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: loss = (losses * mask).sum() / mask.sum()
        counts = torch.bincount(tags.flatten())  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: counts = (tags.flatten()[:, None] == torch.arange(5, device=ids.device)).sum(0)
        used = torch.unique(ids).numel()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: used = 1
        loss = loss + 0 * counts.float().sum() * used
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(ids)}
