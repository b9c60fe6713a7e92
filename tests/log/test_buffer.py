"""LogBuffer: means, memory, and what is refused."""

import weakref

import numpy as np
import pytest
import torch

from devrun.errors import ConfigError
from devrun.log import LogBuffer
from tests.support.strict import zip_strict


class Queued(torch.Tensor):
    """A tensor as on a device with a queue: the buffer must not read it at once."""

    is_cpu = False


PLACES = [torch.Tensor, Queued]


def filled(values, counts=None):
    buffer = LogBuffer()
    for value, count in zip_strict(values, counts or [1] * len(values)):
        buffer.update({"loss": value}, count)
    return buffer


def test_average_is_weighted_by_count_and_takes_the_last_n():
    buffer = filled([1.0, 2.0, 4.0], [5, 1, 3])
    buffer.average(2)
    assert buffer.output == {"loss": pytest.approx((2 * 1 + 4 * 3) / 4)}
    assert buffer.ready
    buffer.average()
    assert buffer.output["loss"] == pytest.approx((5 + 2 + 12) / 9)


@pytest.mark.parametrize("place", PLACES)
def test_tensors_of_several_types_are_read_exactly(place):
    buffer = LogBuffer()
    big = 2**40 + 1
    values = {
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "single": torch.tensor(0.1),
        "double": torch.tensor(0.1, dtype=torch.float64),
        "whole": torch.tensor(big),
        "flag": torch.tensor(True),
    }
    buffer.update({name: value.as_subclass(place) for name, value in values.items()})
    buffer.average()
    assert buffer.output == {
        "half": 0.5,
        "single": float(np.float32(0.1)),
        "double": 0.1,
        "whole": float(big),
        "flag": 1.0,
    }


@pytest.mark.parametrize("place", PLACES)
def test_tensors_are_noted_without_their_graph(place):
    weight = torch.ones((), requires_grad=True)
    buffer = filled([(weight * 2).as_subclass(place)])
    buffer.average()
    assert buffer.output == {"loss": 2.0}
    noted = filled([(weight * 2).as_subclass(place)])
    loss = (weight * 3).as_subclass(place)
    noted.update({"loss": loss})
    loss.backward()  # the buffer holds nothing that would keep or break it
    assert weight.grad == 3


@pytest.mark.parametrize("place", PLACES)
def test_a_running_value_written_in_place_is_logged_as_it_was(place):
    running = torch.zeros(()).as_subclass(place)
    buffer = LogBuffer()
    for step in (1.0, 2.0, 3.0):
        running.add_(step)
        buffer.update({"sum": running})
    assert buffer.val_history == {"sum": [1.0, 3.0, 6.0]}


@pytest.mark.parametrize(
    "value", ["0.5", None, [0.5], torch.ones(2), torch.tensor(1j), np.ones(1), 1j]
)
def test_what_is_no_number_is_refused_by_name(value):
    with pytest.raises(TypeError, match="'accuracy'"):
        LogBuffer().update({"accuracy": value})


def test_no_dict_and_no_samples_are_refused():
    with pytest.raises(TypeError, match="dict"):
        LogBuffer().update([("loss", 1.0)])
    with pytest.raises(ConfigError, match=r"count.*is 0"):
        LogBuffer().update({"loss": 1.0}, 0)


def test_an_endless_run_keeps_a_window_and_the_totals_of_everything():
    buffer = LogBuffer(window=10)
    total = 10_000
    for i in range(total):
        value = torch.tensor(float(i)).as_subclass(Queued) if i % 7 else float(i)
        buffer.update({"loss": value})
    assert buffer.val_history["loss"] == [float(i) for i in range(total - 10, total)]
    buffer.average(0)
    assert buffer.output["loss"] == (total - 1) / 2
    buffer.average(10)
    assert buffer.output["loss"] == total - 5.5


def test_what_waits_is_bounded_even_if_nothing_is_ever_logged():
    buffer = LogBuffer(window=4)
    held = weakref.WeakSet()
    for _ in range(5000):
        value = torch.ones(()).as_subclass(Queued)
        held.add(value)
        buffer.update({"loss": value})
    assert len(held) < 2048 + 2


def test_more_than_was_kept_is_refused_unless_reserved():
    buffer = LogBuffer(window=3)
    buffer.reserve(5)
    for i in range(8):
        buffer.update({"loss": float(i)})
    buffer.average(5)
    assert buffer.output["loss"] == 5.0
    with pytest.raises(ConfigError, match=r"reserve\(6\)"):
        buffer.average(6)
    buffer.average(100)  # all there ever was is known exactly
    assert buffer.output["loss"] == 3.5


def test_clear_output_keeps_the_values_and_clear_forgets_them():
    buffer = filled([1.0, 3.0])
    buffer.average()
    buffer.clear_output()
    assert not buffer.ready
    assert buffer.output == {}
    assert buffer.latest == {"loss": 2.0}
    buffer.average()
    assert buffer.output == {"loss": 2.0}
    buffer.clear()
    buffer.average()
    assert buffer.output == {}
    assert not buffer.ready


def test_sections_are_kept_apart():
    buffer = filled([1.0])
    buffer.select("val")
    buffer.update({"loss": 5.0})
    buffer.select("train")
    buffer.update({"loss": 2.0})
    buffer.average()
    assert buffer.output == {"loss": 1.5}
    assert buffer.totals(section="val") == {"loss": (5.0, 1)}
    buffer.clear_section("val")
    assert buffer.totals(section="val") == {}
