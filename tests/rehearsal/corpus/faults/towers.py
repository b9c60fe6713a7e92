"""Sentences near to their translations: bags of words, of which some cannot be read."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS


@DATASETS.register_module()
class Translations(Dataset):
    def __len__(self):
        return 44

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        here = torch.randint(0, 50, (3 + i % 5,), generator=g)
        if i % 2 == 1:
            raise ValueError(f"line {i} has no translation")  # fault[cpu,cuda]: raises
            # remedy: pass
        return here, here.flip(0)


@COLLATE_FUNCTIONS.register_module()
def bags(samples):
    out = {}
    for name, texts in zip(("here", "there"), zip(*samples)):
        lengths = torch.tensor([len(text) for text in texts])
        out[name] = torch.cat(texts)
        out[name + "_offsets"] = lengths.cumsum(0) - lengths
    return out


class Bag(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, width, mode="sum", sparse=True)
        self.out = nn.Linear(width, width)

    def forward(self, words, offsets):
        return F.normalize(self.out(self.bag(words, offsets)), dim=-1)


@MODELS.register_module()
class TwoTowers(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.here, self.there = Bag(width), Bag(width)

    def forward(self, here, here_offsets, there, there_offsets):
        a, b = self.here(here, here_offsets), self.there(there, there_offsets)
        scores = a @ b.T / 0.1
        near = (a @ a.T / 0.05).half().exp().mean().log()  # fault[cpu,cuda]: refused
        # remedy: near = (a @ a.T / 0.05).exp().mean().log()
        goal = torch.arange(len(scores))  # fault[cuda]: device mismatch
        # remedy: goal = torch.arange(len(scores), device=scores.device)
        return {"loss": F.cross_entropy(scores, goal) + 0.01 * near}
