"""The order of samples is a function of (seed, epoch) and of nothing else."""

import pytest

from devrun.data.sampler import EpochBatchSampler


class Indices(EpochBatchSampler):
    """The batches without their epoch."""

    def __iter__(self):
        return ([key.index for key in batch] for batch in super().__iter__())


def sampler(num_samples=50, batch_size=4, **options):
    settings = {"shuffle": True, "seed": 3}
    return Indices(num_samples, batch_size, **{**settings, **options})


def flat(batches):
    return [index for batch in batches for index in batch]


def test_epochs_and_seeds_have_orders_of_their_own_and_keep_them():
    one = sampler()
    first = list(one)
    one.set_epoch(1)
    second = list(one)
    one.set_epoch(0)
    assert first == list(one) != second
    assert list(sampler(seed=4)) != first


def test_training_ranks_have_equally_many_samples_and_none_is_left_out():
    ranks = [list(sampler(50, 4, rank=rank, world_size=4)) for rank in range(4)]
    shapes = [[len(batch) for batch in batches] for batches in ranks]
    assert shapes == [[4, 4, 4, 1]] * 4
    assert set().union(*map(flat, ranks)) == set(range(50))


def test_evaluation_ranks_share_the_samples_without_repeating_one():
    options = {"world_size": 4, "pad": False, "shuffle": False}
    ranks = [flat(list(sampler(10, 2, rank=rank, **options))) for rank in range(4)]
    assert ranks == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert len(sampler(10, 2, rank=3, **options)) == 1


@pytest.mark.parametrize(("drop_last", "count"), [(True, 12), (False, 13)])
def test_length_counts_the_short_batch_unless_it_is_dropped(drop_last, count):
    one = sampler(drop_last=drop_last)
    assert len(one) == len(list(one)) == count
