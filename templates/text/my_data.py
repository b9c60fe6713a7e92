"""A text as bytes, by default of Python's own; give the path of yours as `file`."""

import argparse
import inspect
from pathlib import Path

import torch
from torch.utils.data import Dataset

from devrun.registry import DATASETS


@DATASETS.register_module()
class MyText(Dataset):
    """Pieces of `length` bytes, each with the bytes that come next."""

    def __init__(self, file=None, split="train", length=32):
        text = Path(file or inspect.getfile(argparse)).read_bytes()[:100_000]
        data = torch.tensor(list(text))
        cut = len(data) * 4 // 5
        self.data = data[:cut] if split == "train" else data[cut:]
        self.length = length

    def __len__(self):
        return (len(self.data) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        piece = self.data[start : start + self.length + 1]
        return {"tokens": piece[:-1], "labels": piece[1:]}
