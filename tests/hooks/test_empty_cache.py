"""The cache is emptied where it was asked for, and nowhere else."""

from __future__ import annotations

import pytest

from devrun.devices.cpu import CPUAdapter
from devrun.hooks.empty_cache import EmptyCacheHook
from tests.support.runs import TracedRun


@pytest.mark.parametrize(
    ("options", "times"),
    [
        ({}, 2),
        ({"after_epoch": False}, 0),
        ({"before_epoch": True}, 4),
        ({"after_iter": True}, 2 + 2 * 4),
        ({"before_epoch": True, "after_epoch": False, "after_iter": True}, 2 + 2 * 4),
    ],
)
def test_it_is_asked_at_the_chosen_points(options: dict[str, bool], times: int) -> None:
    asked = []

    class Noting(CPUAdapter):
        def empty_cache(self) -> None:
            asked.append("empty_cache")

    TracedRun(EmptyCacheHook(**options), max_epochs=2, length=4, device=Noting()).run()
    assert len(asked) == times


def test_a_point_not_asked_for_costs_nothing() -> None:
    assert EmptyCacheHook().get_triggered_stages() == [
        "after_train_epoch",
        "after_val_epoch",
    ]
