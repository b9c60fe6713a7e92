"""What a loader yields from the middle equals what it would have yielded there."""

import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from devrun.data.prepared import PreparedLoader
from devrun.data.spec import LoaderSpec
from devrun.errors import ConfigError, DataError
from tests.data.helpers import Draws, KnowsEpoch, prepared, read
from tests.support.strict import zip_strict

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def same(one, other):
    if len(one) != len(other):
        return False
    return all(torch.equal(a, b) for a, b in zip_strict(one, other))


@pytest.fixture(scope="module")
def uninterrupted():
    loader = prepared(Draws(), shuffle=True)
    return [read(loader, epoch) for epoch in range(3)]


@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), (2, False), (2, True), (4, True)]
)
def test_any_start_in_any_epoch_is_exact(uninterrupted, workers, persistent):
    loader = prepared(
        Draws(), shuffle=True, num_workers=workers, persistent_workers=persistent
    )
    for epoch, cut in ((0, 0), (0, 1), (1, 5), (1, 9), (2, 10), (2, 3), (0, 4)):
        rest = read(loader, epoch, cut)
        assert same(rest, uninterrupted[epoch][cut:]), (epoch, cut)


def test_a_broken_off_epoch_does_not_disturb_the_next():
    loader = prepared(Draws(), shuffle=True, num_workers=2, persistent_workers=True)
    whole = read(loader, 1)
    loader.set_epoch(0)
    for _ in loader:
        break
    assert same(read(loader, 1), whole)


def test_samples_do_not_depend_on_the_number_of_processes():
    whole = read(prepared(Draws(40), shuffle=True, batch_size=8), 1)
    ranks = [
        read(prepared(Draws(40), shuffle=True, rank=rank, world_size=2), 1)
        for rank in range(2)
    ]
    together = [torch.cat(parts) for parts in zip_strict(*ranks)]
    assert same(together, whole)


def test_accumulated_updates_resume_at_an_update():
    loader = prepared(Draws(), shuffle=True, accumulate=3)
    whole = read(loader, 0)
    assert len(loader) == len(whole) == 4
    assert [len(group) for group in whole] == [3, 3, 3, 1]
    rest = read(loader, 0, 2)
    assert same([*rest[0], *rest[1]], [*whole[2], *whole[3]])
    assert read(loader, 0, 4) == []


def test_a_sampler_of_ones_own_is_exact_too():
    def loader(workers):
        own = WeightedRandomSampler(torch.arange(1.0, 38.0).tolist(), 37)
        return prepared(Draws(), sampler=own, num_workers=workers)

    whole = read(loader(0), 1)
    assert same(read(loader(2), 1, 4), whole[4:])
    assert not same(read(loader(0), 2), whole)


def test_a_distributed_sampler_keeps_its_order_and_hears_of_the_epoch():
    own = DistributedSampler(Draws(), 2, 1, seed=5)
    loader = prepared(Draws(), sampler=own, rank=1, world_size=2)
    got = torch.cat(read(loader, 3))[:, 0].tolist()
    own.set_epoch(3)
    assert got == list(own)


def test_a_generator_of_the_users_chooses_the_order():
    def order(run_seed, own_seed):
        generator = torch.Generator().manual_seed(own_seed)
        loader = DataLoader(Draws(), 37, shuffle=True, generator=generator)
        batch = next(iter(PreparedLoader(LoaderSpec.of(loader, seed=run_seed))))
        return batch[:, 0].tolist()

    assert order(1, 5) == order(2, 5) != order(1, 6)


def test_persistent_workers_tell_the_data_set_of_the_epoch():
    loader = prepared(KnowsEpoch(), num_workers=1, persistent_workers=True)
    assert [torch.cat(read(loader, epoch)).unique().tolist() for epoch in (0, 4)] == [
        [0],
        [4],
    ]


def test_an_empty_data_set_is_refused():
    with pytest.raises(DataError, match="Draws is empty"):
        prepared(Draws(0))


def test_fewer_samples_than_a_batch_with_drop_last_are_refused():
    with pytest.raises(ConfigError, match=r"3 samples are fewer than one batch of 4"):
        prepared(Draws(3), drop_last=True)


def test_a_start_behind_the_end_is_refused():
    with pytest.raises(ConfigError, match="update 11 of an epoch of 10"):
        prepared(Draws()).start_at(11)
