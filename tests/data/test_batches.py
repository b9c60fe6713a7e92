"""Samples that are read a batch at a time, and workers that are there before a step."""

import multiprocessing
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from tests.data.helpers import prepared, read
from tests.support.noisy import runner
from tests.support.strict import zip_strict

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


class InBatches(Dataset[int]):
    """The numbers from `first` on, of which only whole batches can be had."""

    def __init__(self, first, count):
        self.first, self.count, self.batches = first, count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        raise AssertionError("one by one")

    def __getitems__(self, indices):
        self.batches += 1
        assert all(0 <= index < self.count for index in indices)
        return [self.first + index for index in indices]


@pytest.mark.parametrize("torchs_own", [False, True])
def test_a_subset_reads_the_batches_of_its_data_set(torchs_own):
    inner = InBatches(5, 8)
    some = Subset(inner, range(1, 8))
    if torchs_own:
        (batch,) = DataLoader(some, batch_size=14)
    else:
        (batch,) = read(prepared(some, batch_size=14), 0)
    assert batch.tolist() == [6, 7, 8, 9, 10, 11, 12]
    assert inner.batches == 1


class OneByOne(TensorDataset):
    """Is not read at once, as it might do anything."""


def tensors(kind):
    torch.manual_seed(0)
    images = torch.randn(24, 3, 4, 4).to(memory_format=torch.channels_last)
    return kind(torch.randn(24, 3), torch.arange(24)), kind(images, torch.arange(24))


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_are_read_at_once_with_the_same_bits(workers, monkeypatch):
    chosen = list(range(23, -1, -1))
    wanted = [
        read(prepared(Subset(data, chosen), shuffle=True), 1)
        for data in tensors(OneByOne)
    ]
    flat, images = tensors(TensorDataset)
    options = {"shuffle": True, "num_workers": workers}
    assert alike(read(prepared(Subset(images, chosen), **options), 1), wanted[1])
    monkeypatch.setattr(TensorDataset, "__getitem__", None)
    found = read(prepared(Subset(flat, chosen), **options), 1)
    assert alike(found, wanted[0])
    own = read(prepared(Subset(flat, chosen), collate_fn=list, **options), 1)
    assert [type(sample) for sample in own[0]] == [tuple] * 4
    assert torch.equal(own[0][1][0], found[0][0][1])


def alike(found, wanted):
    return all(
        one.dtype == other.dtype
        and one.stride() == other.stride()
        and torch.equal(one, other)
        for pair in zip_strict(found, wanted)
        for one, other in zip_strict(*pair)
    )


class Counted(Dataset[Any]):
    def __init__(self):
        self.read = multiprocessing.get_context("fork").Value("i", 0)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        with self.read.get_lock():
            self.read.value += 1
        return torch.ones(4), index % 2


class Compiles(nn.Module):
    """Its first step takes until the workers have read three batches, or a minute."""

    def __init__(self, data):
        super().__init__()
        self.net, self.data = nn.Linear(4, 2), data

    def forward(self, x):
        end = time.monotonic() + 60
        while self.data.read.value < 12 and time.monotonic() < end:
            time.sleep(0.01)
        assert self.data.read.value >= 12
        return self.net(x)


def test_workers_read_ahead_while_the_first_step_compiles():
    data = Counted()
    run = runner(False, 1, model=Compiles(data))
    run.run([DataLoader(data, batch_size=4, num_workers=1)])
    run.close()
