"""Loading data leaves the process's own random streams alone."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from devrun.data.prepared import PreparedLoader
from devrun.data.spec import LoaderSpec
from tests.data.helpers import Draws, prepared, read
from tests.support.strict import zip_strict

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def state():
    legacy = np.random.get_state()
    return (
        random.getstate(),
        torch.default_generator.get_state().tolist(),
        legacy[1].tolist(),
        legacy[2:],
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_an_epoch_draws_nothing_from_the_global_streams(workers):
    np.random.randn()  # leaves half of a pair of normal draws waiting
    before = state()
    read(prepared(Draws(), shuffle=True, num_workers=workers), 0)
    assert state() == before


def test_a_batch_is_the_same_whatever_was_drawn_between():
    loader = prepared(Draws(), shuffle=True)
    quiet = read(loader, 0)
    loader.set_epoch(0)
    disturbed = []
    for batch in loader:
        torch.manual_seed(0)
        random.random()
        disturbed.append(batch)
    assert all(torch.equal(a, b) for a, b in zip_strict(quiet, disturbed))


def test_random_collating_is_the_same_in_a_worker():
    def noisy(samples):
        return torch.stack(samples) + random.random()

    here = read(prepared(Draws(), collate_fn=noisy), 1)
    there = read(prepared(Draws(), collate_fn=noisy, num_workers=2), 1)
    assert all(torch.equal(a, b) for a, b in zip_strict(here, there))


class NoisyTensors(TensorDataset):
    """torch's TensorDataset draws nothing; this one of its kind does."""

    def __getitem__(self, index):
        return (super().__getitem__(index)[0] + random.random() + torch.rand(()),)


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(d, range(12))])
def test_a_kind_of_tensor_dataset_that_draws_is_seeded(wrap):
    loader = prepared(wrap(NoisyTensors(torch.zeros(16))), shuffle=True)
    before = state()
    quiet = read(loader, 0)
    assert state() == before
    random.seed(5)
    again = read(loader, 0)
    assert all(torch.equal(a[0], b[0]) for a, b in zip_strict(quiet, again))


class Told(Dataset):
    """Gives the epoch that it was told last."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.epoch


def test_loaders_over_one_data_set_tell_it_their_own_epochs():
    data = Told()
    train, val = (
        PreparedLoader(LoaderSpec.of(DataLoader(data, batch_size=4), seed=1))
        for _ in range(2)
    )
    train.set_epoch(3)
    first = iter(train)
    assert next(first).tolist() == [3] * 4
    assert next(iter(val)).tolist() == [0] * 4
    assert next(first).tolist() == [3] * 4
