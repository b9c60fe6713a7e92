"""Data sets of the tests; at module level, so that workers can have them."""

import os
import random
import signal
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from devrun.data.prepared import PreparedLoader
from devrun.data.spec import LoaderSpec


class Draws(Dataset[torch.Tensor]):
    """Sample i is (i, a draw of `random`, one of numpy, one of torch)."""

    def __init__(self, size=37):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        drawn = [index, random.random(), np.random.rand(), torch.rand(()).item()]
        return torch.tensor(drawn, dtype=torch.float64)


class KnowsEpoch(Dataset[int]):
    """Every sample is the epoch that the data set was told of last."""

    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.epoch


class Failing(Dataset[int]):
    """Sample i is i, unless i is in `bad`."""

    def __init__(self, bad, size=20):
        self.bad, self.size = bad, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"first line\nsample file {index} is torn")
        return index


class Dying(Dataset[int]):
    """The process that reads sample `at` ends, by `how`."""

    def __init__(self, at, how):
        self.at, self.how = at, how

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == self.at:
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exits":
                os._exit(0)
            time.sleep(600)
        return index


class Numbers(IterableDataset[int]):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


def prepared(dataset, *, accumulate=1, **options):
    """A resumable loader, as an adapter makes it, with seed 7."""
    keywords = {
        name: options.pop(name)
        for name in ("rank", "world_size", "training")
        if name in options
    }
    options.setdefault("batch_size", 4)
    loader = DataLoader(dataset, **options)
    spec = LoaderSpec.of(loader, seed=7, **keywords)
    return PreparedLoader(spec, accumulate=accumulate)


def read(loader, epoch, start=0):
    """The items of `epoch` from update `start` on."""
    loader.set_epoch(epoch)
    loader.start_at(start)
    return list(loader)
