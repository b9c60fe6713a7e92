"""Which process is called the slowest of a whole run, and when none is."""

from __future__ import annotations

import logging

import pytest

from devrun.hooks.slow import SlowRanks

LOG = logging.getLogger("devrun")
EQUAL = (0.010, 0.010, 0.010)


def slowest(looks: list[tuple[float, ...]]) -> dict[str, float] | None:
    """Of looks that are ten updates of 100 ms each."""
    ranks = SlowRanks()
    for own in looks:
        ranks.look(own, 10, 0.1, LOG)
    return ranks.slowest


def test_the_one_that_the_others_wait_for_is_named() -> None:
    found = slowest([EQUAL, (0.010, 0.030, 0.010), *[(0.010, 0.034, 0.010)] * 2])
    assert found == {"rank": 1, "ms": 27.0, "median_ms": 10.0, "update_ms": 100.0}


@pytest.mark.parametrize(
    "looks",
    [
        [(0.050, 0.062, 0.050)] * 9,  # not 1.3 times the median
        [(0.010, 0.019, 0.010)] * 9,  # 9 ms of an update of 100 ms
        [(0.010, 0.030, 0.010), (0.030, 0.010, 0.010), EQUAL] * 3,  # one, then another
        [*[EQUAL] * 8, (0.010, 9.0, 0.010)],  # one hiccup, large enough for the mean
        [(0.010, 0.030, 0.010)] * 2,  # too few looks to tell
        [],
    ],
)
def test_what_does_not_matter_is_not_said(looks: list[tuple[float, ...]]) -> None:
    assert slowest(looks) is None
