"""Which sizes are chosen from the data, and what they are said to cost."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from devrun.data.buckets import Buckets, choose_sizes, forecast
from devrun.errors import DataError

LENGTHS = torch.randint(1, 60, (300,), generator=torch.Generator().manual_seed(0))


def padded_to(sizes: list[int]) -> int:
    """Positions of batches with `LENGTHS` as their longest samples."""
    buckets = Buckets(tuple(sizes))
    return sum(buckets.fit(length) for length in LENGTHS.tolist())


def chosen(way: str, num: int = 4, multiple_of: int = 1) -> list[int]:
    most = int(LENGTHS.max())
    return choose_sizes(way, LENGTHS, most, num=num, multiple_of=multiple_of)


@pytest.mark.parametrize("num", [1, 2, 3])
def test_optimal_sizes_are_those_of_a_search_of_all(num: int) -> None:
    most = int(LENGTHS.max())
    every = (sorted([*some, most]) for some in combinations(range(1, most), num - 1))
    assert padded_to(chosen("optimal", num)) == min(map(padded_to, every))


def test_more_sizes_than_lengths_are_no_more_than_the_lengths() -> None:
    few = torch.tensor([3, 3, 9])
    for way in ("optimal", "quantiles"):
        assert choose_sizes(way, few, 12, num=8, multiple_of=1) == [3, 9, 12]


def test_quantiles_have_equal_shares_of_the_batches() -> None:
    sizes = chosen("quantiles")
    fits = [Buckets(tuple(sizes)).fit(length) for length in LENGTHS.tolist()]
    assert all(abs(fits.count(size) - 75) < 12 for size in sizes)
    assert padded_to(chosen("optimal")) <= padded_to(sizes)


def test_powers_go_from_the_shortest_to_the_longest() -> None:
    few = torch.tensor([5, 8, 33])
    assert choose_sizes("powers", few, 65, num=1, multiple_of=1) == [8, 16, 32, 64, 128]


def test_sizes_are_rounded_up_to_a_multiple() -> None:
    for way in ("optimal", "quantiles"):
        sizes = chosen(way, 5, multiple_of=8)
        assert all(size % 8 == 0 for size in sizes)
        assert sizes[-1] == 64


def test_many_lengths_are_chosen_from_in_little_time() -> None:
    lengths = torch.arange(1, 100_001)
    sizes = choose_sizes("optimal", lengths, 100_000, num=4, multiple_of=1)
    assert [round(size, -3) for size in sizes] == [25_000, 50_000, 75_000, 100_000]


def test_a_length_takes_the_next_size() -> None:
    buckets = Buckets((4, 8))
    assert [buckets.fit(n) for n in (0, 1, 4, 5, 8)] == [4, 4, 4, 8, 8]
    longest = Buckets((), multiple_of=4, max_length=10)
    assert [longest.fit(n) for n in (1, 4, 7, 9, 10)] == [4, 4, 8, 10, 10]


def test_a_sample_that_is_too_long_is_refused_cut_or_given_room() -> None:
    with pytest.raises(
        DataError, match=r"length 9 is above the largest bucket, 8; too"
    ):
        Buckets((4, 8)).fit(9)
    assert Buckets((4, 8), too_long="truncate").fit(9) == 8
    assert [Buckets((4, 8), too_long="grow").fit(n) for n in (9, 16, 17)] == [
        16,
        16,
        32,
    ]


def test_the_forecast_counts_what_is_padded() -> None:
    batches = [torch.tensor([2, 3]), torch.tensor([4, 1]), torch.tensor([6])]
    assert forecast(batches, Buckets((4, 8))) == "33.3 % padding, 2 shapes"
    assert forecast(batches, Buckets(())) == "20.0 % padding, 3 shapes"
    cut = Buckets((3,), too_long="truncate")
    assert forecast(batches, cut) == "20.0 % padding, 2 shapes"
