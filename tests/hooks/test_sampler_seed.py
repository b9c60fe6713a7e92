"""`set_epoch` reaches whatever a loader is made of."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from devrun.hooks.sampler_seed import DistSamplerSeedHook
from tests.support.runs import TracedRun


def sampler() -> DistributedSampler:
    data = TensorDataset(torch.arange(6))
    return DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)


def tell(loader: Any, epoch: int) -> None:
    """The hook at the start of `epoch`, with a run that has `loader`."""
    runner = TracedRun(max_epochs=9).runner
    runner.data_loader, runner.state.epoch = loader, epoch
    DistSamplerSeedHook().before_train_epoch(runner)


def test_a_sampler_is_told_each_epoch_before_it_begins() -> None:
    chosen = sampler()
    loader = DataLoader(chosen.dataset, sampler=chosen)
    orders, expected = [], []
    for epoch in (0, 1):
        tell(loader, epoch)
        orders.append(list(chosen))
        fresh = sampler()
        fresh.set_epoch(epoch)
        expected.append(list(fresh))
    assert orders == expected
    assert orders[0] != orders[1]


def test_the_sampler_inside_a_batch_sampler_is_told() -> None:
    inner = sampler()
    tell(DataLoader(inner.dataset, batch_sampler=BatchSampler(inner, 2, False)), 7)
    assert inner.epoch == 7


def test_a_loader_with_its_own_set_epoch_is_told() -> None:
    class Loader(list[Any]):
        def set_epoch(self, epoch: int) -> None:
            self.append(epoch)

    loader = Loader()
    for epoch in range(3):
        tell(loader, epoch)
    assert loader == [0, 1, 2]


def test_a_loader_without_epochs_is_left_alone() -> None:
    TracedRun(DistSamplerSeedHook(), max_epochs=1).run()
    tell([1, 2], 0)


def test_an_iteration_run_that_has_no_loader_yet_is_left_alone() -> None:
    DistSamplerSeedHook().before_epoch(TracedRun(max_iters=1).runner)
