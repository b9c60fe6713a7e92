"""Buffers are averaged over processes, and `set_epoch` reaches every sampler."""

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from devrun.hooks.processes import DistSamplerSeedHook
from tests.support import zygote
from tests.support.runs import TracedRun

SCRIPT = """
import sys, torch
from devrun.dist import close_dist, get_dist_info, init_dist
from devrun.hooks.processes import SyncBuffersHook
from tests.support.runs import TracedRun

init_dist("pytorch", "gloo", timeout=60)
rank, _ = get_dist_info()
means = {}
for distributed in (True, False):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    run = TracedRun(SyncBuffersHook(distributed), max_epochs=1, model=model)
    run.run()  # each rank has half of the samples
    means[distributed] = model[0].running_mean.clone()
torch.save(means, f"{rank}.pt")
close_dist()
"""


def test_two_processes_have_the_mean_of_their_buffers(tmp_path):
    ranks = zygote.start_ranks(["-c", SCRIPT], cwd=tmp_path)
    said = [rank.communicate(60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    found = [torch.load(tmp_path / f"{r}.pt", weights_only=True) for r in (0, 1)]
    alone = [means[False] for means in found]
    together = [means[True] for means in found]
    assert not torch.allclose(*alone)
    assert torch.equal(*together)
    assert torch.allclose(together[0], (alone[0] + alone[1]) / 2)


def sampler():
    data = TensorDataset(torch.arange(6))
    return DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)


def tell(loader, epoch):
    """The hook at the start of `epoch`, with a run that has `loader`."""
    runner = TracedRun(max_epochs=9).runner
    runner.data_loader, runner.state.epoch = loader, epoch
    DistSamplerSeedHook().before_train_epoch(runner)


def test_a_sampler_is_told_each_epoch_before_it_begins():
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


def test_the_sampler_inside_a_batch_sampler_is_told():
    inner = sampler()
    tell(DataLoader(inner.dataset, batch_sampler=BatchSampler(inner, 2, False)), 7)
    assert inner.epoch == 7


def test_a_loader_with_its_own_set_epoch_is_told():
    class Loader(list[Any]):
        def set_epoch(self, epoch):
            self.append(epoch)

    loader = Loader()
    for epoch in range(3):
        tell(loader, epoch)
    assert loader == [0, 1, 2]
