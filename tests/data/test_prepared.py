"""What `PreparedLoader` adds to a loader, and what it shows of it."""

from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from devrun.data.prepared import PreparedLoader
from devrun.data.sampler import EpochBatchSampler
from devrun.step import MicroBatches
from tests.data.helpers import Draws, prepared, read


def test_it_shows_the_users_data_set_sampler_and_sizes():
    dataset = Draws()
    loader = prepared(dataset, shuffle=True, drop_last=True, accumulate=2, world_size=3)
    assert loader.dataset is dataset
    assert isinstance(loader.sampler, EpochBatchSampler)
    assert loader.batch_size == 4
    assert loader.samples_per_update == 4 * 3 * 2
    assert loader.loader.num_workers == 0


def test_groups_are_micro_batches_and_the_rest_is_not_lost():
    groups = list(PreparedLoader([1, 2, 3, 4, 5], accumulate=2))
    assert groups == [[1, 2], [3, 4], [5]]
    assert all(isinstance(group, MicroBatches) for group in groups)


def test_every_micro_batch_is_transferred():
    loader = PreparedLoader([1, 2, 3], accumulate=2, transfer=lambda batch: -batch)
    assert list(loader) == [[-1, -2], [-3]]


def test_lookahead_transfers_the_next_before_handing_out_this_one():
    events = []

    def transfer(batch):
        events.append(("transfer", batch))
        return batch

    def receive(batch):
        events.append(("receive", batch))
        return batch

    loader = PreparedLoader([1, 2, 3], transfer=transfer, receive=receive, lookahead=1)
    assert list(loader) == [1, 2, 3]
    assert events == [
        ("transfer", 1),
        ("transfer", 2),
        ("receive", 1),
        ("transfer", 3),
        ("receive", 2),
        ("receive", 3),
    ]


def test_skipped_batches_are_not_transferred():
    moved = []
    loader = PreparedLoader([1, 2, 3], transfer=lambda batch: moved.append(batch))
    loader.start_at(2)
    list(loader)
    assert moved == [3]


def test_the_epoch_reaches_a_loader_that_knows_epochs():
    class Own(DataLoader[Any]):
        heard: list[int] = []

        def set_epoch(self, epoch):
            self.heard.append(epoch)

    PreparedLoader(Own(Draws())).set_epoch(5)
    assert Own.heard == [5]


def test_a_limit_ends_an_epoch_early_and_fetches_nothing_ahead_of_its_end():
    moved = []

    def transfer(batch):
        moved.append(batch)
        return batch

    whole = PreparedLoader([1, 2, 3, 4], transfer=transfer, lookahead=1)
    limited = whole.limited(2)
    assert (len(limited), list(limited), moved) == (2, [1, 2], [1, 2])
    assert read(limited, 0, 1) == [2]
    assert read(limited, 0, 3) == []  # saved before the limit was set
    assert (len(whole), list(whole)) == (4, [1, 2, 3, 4])


def test_a_short_last_update_can_be_left_out():
    loader = PreparedLoader([1, 2, 3, 4, 5], accumulate=2, drop_short=True)
    assert (len(loader), list(loader)) == (2, [[1, 2], [3, 4]])


def test_the_sampler_inside_a_batch_sampler_of_a_subclass_hears_of_the_epoch():
    class Own(DataLoader[Any]):
        pass

    inner = DistributedSampler(Draws(), 2, 0)
    loader = Own(Draws(), batch_sampler=BatchSampler(inner, 4, False))
    PreparedLoader(loader).set_epoch(3)
    assert inner.epoch == 3


def test_a_short_last_update_over_several_processes_is_told(caplog):
    prepared(Draws(13), batch_size=6, world_size=2)
    assert "1 samples for 2 processes: it takes 1 of the first" in caplog.text
    caplog.clear()
    prepared(Draws(13), batch_size=6, world_size=2, drop_last=True)
    prepared(Draws(14), batch_size=7, world_size=2)
    assert caplog.text == ""
