"""No configuration takes more than its share of time and memory, however written."""

import pytest

from tests.config.hostile import HOSTILE
from tests.config.measure import Meter


@pytest.fixture(scope="module")
def meter():
    with Meter() as made:
        yield made


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_configs_are_bounded(meter, name):
    cost = meter.cost(HOSTILE[name])
    assert cost.bounded, cost
