"""NaN and infinite losses, gradients and weights."""

import logging
import math

import pytest
import torch
from torch import nn

from devrun.devices.cpu import CPUAdapter
from devrun.devices.finite import MAX_SKIPPED_IN_A_ROW, FiniteGuard
from devrun.errors import DivergedError
from devrun.step import MicroBatches
from tests.support.cpu import Prepared, batch, same, weights


class Queued(CPUAdapter):
    """A device whose values the host should not wait for at every step."""

    name = "queued"
    host_shared = False


class SqrtOfZero(nn.Module):
    """A finite loss whose gradient is infinite."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x, y):
        return {"loss": self.weight.sqrt().sum() + 0 * x.sum()}


def bad(value=math.nan):
    x, y = batch()
    return x * value, y


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_stop_comes_before_the_update(value, accumulate):
    run = Prepared(accumulate=accumulate)
    data = [
        MicroBatches([b, b]) if accumulate > 1 else b for b in (batch(), bad(value))
    ]
    run.step(data[0])
    before = weights(run.module)
    with pytest.raises(DivergedError, match="nonfinite"):
        run.step(data[1])
    assert same(weights(run.module), before)


def test_skip_leaves_the_update_out_and_goes_on(caplog):
    run = Prepared(nonfinite="skip")
    run.step()
    before = weights(run.module)
    with caplog.at_level(logging.WARNING, "devrun"):
        outputs = run.step(bad())
    assert math.isnan(float(outputs.loss))  # the log tells the truth
    assert same(weights(run.module), before)
    assert "skipped" in caplog.text
    run.step()
    assert not same(weights(run.module), before)


def test_skipping_for_ever_stops():
    run = Prepared(nonfinite="skip")
    with pytest.raises(DivergedError, match="in a row"):
        for _ in range(MAX_SKIPPED_IN_A_ROW):
            run.step(bad())


def test_warn_says_so_and_updates(caplog):
    run = Prepared(nonfinite="warn")
    with caplog.at_level(logging.WARNING, "devrun"):
        run.step(bad())
    assert "the loss is nan" in caplog.text
    assert any(w.isnan().any() for w in weights(run.module))


def test_ignore_says_nothing(caplog):
    run = Prepared(nonfinite="ignore")
    run.step(bad())
    run.adapter.check_finite(run.model)
    assert not caplog.records


@pytest.mark.parametrize("action", ["stop", "skip"])
def test_an_infinite_gradient_norm_is_found_when_clipping(action):
    run = Prepared(
        SqrtOfZero(), loss=None, grad_clip={"max_norm": 1.0}, nonfinite=action
    )
    if action == "stop":
        with pytest.raises(DivergedError, match="gradient norm"):
            run.step()
    else:
        run.step()
    assert run.module.weight.tolist() == [0, 0, 0]


def test_a_constant_mask_of_infinities_is_no_weight():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.register_buffer("mask", torch.full((3,), -math.inf))
            self.frozen = nn.Parameter(torch.tensor(math.inf), requires_grad=False)

        def forward(self, x):
            return self.linear(x)

    run = Prepared(Masked())
    run.step()
    run.adapter.check_finite(run.model)


def test_a_queued_device_finds_it_at_the_check_and_then_forgets_it():
    run = Prepared(adapter=Queued.from_config({}))
    for _ in range(100):
        run.step()
    run.adapter.check_finite()
    run.step(bad())
    run.step()
    with pytest.raises(DivergedError, match="since the last check"):
        run.adapter.check_finite()
    run.adapter.check_finite()


def test_large_finite_losses_are_no_alarm_on_a_queued_device():
    run = Prepared(nn.Linear(4, 3), adapter=Queued.from_config({}), loss=huge)
    for _ in range(200):
        run.step()
    run.adapter.check_finite()


def huge(output, target):
    return output.sum() * 0 + 3e38


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64])
def test_weights_are_judged_one_by_one(dtype):
    """A sum that overflows is no alarm."""
    model = nn.Linear(4, 4, dtype=dtype)
    guard = FiniteGuard("stop", host_shared=True)
    with torch.no_grad():
        largest = torch.finfo(dtype).max
        model.weight.fill_(largest)
        guard.flush(model)
        model.bias[1] = math.nan
    with pytest.raises(DivergedError, match="'bias' has nan"):
        guard.flush(model)
