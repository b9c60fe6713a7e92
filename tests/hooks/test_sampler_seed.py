"""`set_epoch` reaches whatever a loader is made of."""

from __future__ import annotations

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from devrun.hooks.sampler_seed import DistSamplerSeedHook
from tests.hooks.loop import Batches, Loop


def sampler() -> DistributedSampler:
    data = TensorDataset(torch.arange(6))
    return DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)


def test_a_sampler_is_told_each_epoch_before_it_begins() -> None:
    chosen = sampler()
    orders = []

    class Loader(Batches):
        def __init__(self) -> None:
            super().__init__(2)
            self.sampler = chosen

        def __iter__(self):
            orders.append(list(chosen))
            return super().__iter__()

    loop = Loop(DistSamplerSeedHook(), max_epochs=2, length=2)
    loop.data_loader = Loader()
    loop.run()
    expected = []
    for epoch in (0, 1):
        fresh = sampler()
        fresh.set_epoch(epoch)
        expected.append(list(fresh))
    assert orders == expected
    assert orders[0] != orders[1]


def test_the_sampler_inside_a_batch_sampler_is_told() -> None:
    inner = sampler()
    loader = DataLoader(inner.dataset, batch_sampler=BatchSampler(inner, 2, False))
    loop = Loop(max_epochs=1)
    loop.data_loader, loop.epoch = loader, 7
    DistSamplerSeedHook().before_train_epoch(loop)
    assert inner.epoch == 7


def test_a_loader_with_its_own_set_epoch_is_told() -> None:
    class Loader(Batches):
        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    loop = Loop(DistSamplerSeedHook(), max_epochs=3, length=2)
    loop.data_loader = Loader(2)
    loop.run()
    assert loop.data_loader.epochs == [0, 1, 2]


def test_a_loader_without_epochs_is_left_alone() -> None:
    Loop(DistSamplerSeedHook(), max_epochs=1).run()


def test_an_iteration_run_that_has_no_loader_yet_is_left_alone() -> None:
    loop = Loop(max_iters=1)
    loop.data_loader = None
    DistSamplerSeedHook().before_epoch(loop)
