"""The LSTM on a Gaudi."""

import pytest

from tests.hpu.runs import device
from tests.models.test_lstm import losses

MODES = ("lazy", "eager")


def test_it_trains_as_on_the_cpu():
    assert losses(device()) == pytest.approx(losses("cpu"), rel=1e-5)  # of float32
