"""Updates that are left out: by a loss scale, and for gradients that are not finite."""

import logging
import math

import pytest
import torch
from torch import nn

from devrun.devices.finite import MAX_SKIPPED_IN_A_ROW
from devrun.errors import DivergedError
from tests.devices.test_nonfinite import Queued, SqrtOfZero
from tests.support.cpu import Prepared, batch, same, weights

TOO_LARGE = 2.0**40


def left_out(run):
    return run.adapter.state_dict().get("skipped_updates", 0)


def overflowing(scale=TOO_LARGE, **policy):
    return Prepared(precision="fp16", loss_scale=scale, **policy)


def counts_in(caplog):
    """The counts that warnings of left out updates begin with."""
    said = [record.getMessage() for record in caplog.records]
    return [int(line.split()[0]) for line in said if "left out" in line]


@pytest.mark.parametrize("action", ["warn", "ignore"])
def test_a_policy_that_goes_on_is_told_again_and_again(action, caplog):
    run = overflowing(nonfinite=action)
    with caplog.at_level(logging.WARNING, "devrun"):
        for _ in range(2 * MAX_SKIPPED_IN_A_ROW):
            run.step()
    assert counts_in(caplog) == [10, 20, 40, 50, 80, 100]


def test_a_queued_device_is_read_when_the_host_waits_anyway():
    run = overflowing(adapter=Queued.from_config({}))
    for _ in range(2 * MAX_SKIPPED_IN_A_ROW):
        run.step()
    assert left_out(run) == 0
    with pytest.raises(DivergedError, match="left out"):
        run.adapter.check_finite()


def test_the_count_goes_on_after_a_resume():
    run = overflowing()
    for _ in range(3):
        run.step()
    state = run.adapter.state_dict()
    assert "skipped_updates" not in Prepared(precision="fp16").adapter.state_dict()
    later = overflowing()
    later.adapter.load_state_dict(state)
    later.step()
    assert left_out(later) == 4


@pytest.mark.parametrize("clip", [None, {"max_norm": 1.0}, {"clip_value": 1.0}])
def test_skip_leaves_an_infinite_gradient_out_also_without_clipping(clip):
    run = Prepared(SqrtOfZero(), loss=None, grad_clip=clip, nonfinite="skip")
    for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
        run.step()
    assert run.module.weight.tolist() == [0, 0, 0]
    assert left_out(run) == MAX_SKIPPED_IN_A_ROW - 1
    with pytest.raises(DivergedError, match="in a row"):
        run.step()


def test_skip_looks_at_sparse_and_missing_gradients():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, 3, sparse=True)
            self.unused = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return self.table(torch.zeros(len(x), dtype=torch.long))

    run = Prepared(Sparse(), nonfinite="skip")
    before = weights(run.module)
    run.step()
    assert not same(weights(run.module), before)
    assert left_out(run) == 0


def test_skip_does_not_save_statistics_that_a_bad_batch_spoilt():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    run = Prepared(model, nonfinite="skip")
    x, y = batch()
    run.step((x * math.nan, y))
    with pytest.raises(DivergedError, match=r"buffer '0\.running_mean' has nan"):
        run.adapter.check_finite(run.model)
