"""A tagger of texts of any length whose author compiles the parts by hand."""

import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS


@DATASETS.register_module()
class Texts(Dataset):
    def __init__(self, size=48):
        draw = torch.Generator().manual_seed(8)
        lengths = torch.randint(4, 20, (size,), generator=draw)
        self.texts = [torch.randint(0, 30, (n,), generator=draw) for n in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i], len(self.texts[i]) % 4


@COLLATE_FUNCTIONS.register_module()
def padded(batch):
    texts, labels = zip(*batch)
    whole = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    short = whole[:, : 2 + len(set(labels)) + int(whole[0, 0]) % 9]
    return short.contiguous(), torch.tensor(labels)


@torch.compile(dynamic=False)  # fault[cpu,cuda]: compiled again
# remedy: @torch.compile(dynamic=True)
def pooled(words):
    return words.tanh().mean(1)


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.line = nn.Linear(width, width)

    @torch.compile(fullgraph=True)
    def mixed(self, x):
        if x.mean() > 5:  # fault[cpu,cuda]: graph break; fault[cuda]: host sync
            # remedy: if self.training:
            x = x / 2
        return self.line(x)

    def forward(self, x):
        return self.mixed(x)


@MODELS.register_module()
class Tagger(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.words = nn.Embedding(30, width)
        self.gate = Gate(width)
        self.head = torch.compile(nn.Linear(width, 4))

    def forward(self, texts):
        return self.head(self.gate(pooled(self.words(texts))))
