"""Books to shelves: bags of words, whose batches have other names than their samples."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS


@DATASETS.register_module()
class Books(Dataset):
    def __init__(self, size=64):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        words = torch.randint(1, 60, (5 + i % 9,), generator=draw)
        words[::2] = 60 + i % 5
        return words, i % 5


@COLLATE_FUNCTIONS.register_module()
def padded(samples):
    words = pad_sequence([words for words, _ in samples], batch_first=True)
    shelves = torch.tensor([shelf for _, shelf in samples])
    return {"words": words, "shelves": shelves}  # fault[ipu]: changing shapes
    # remedy: --cfg-options 'data.buckets={pad: {words: 0}, num: 1}'


@MODELS.register_module()
class Shelf(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.words = nn.EmbeddingBag(65, width, padding_idx=0)
        self.head = nn.Linear(width, 5)

    def forward(self, words, shelves=None):
        x = self.words(words)  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: x = F.embedding(words, self.words.weight).mean(1)
        scores = self.head(x)
        if shelves is None:
            return {"scores": scores}
        return {"loss": F.cross_entropy(scores, shelves), "scores": scores}
