"""Pipelines of four stages, and of two side by side, on four processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel.staged import FedStack, Stack, fit, frozen, stepped, taken_up
from tests.parallel.test_strategies import assert_same
from tests.parallel.worker import convolutions, gpt, train
from tests.support.near import assert_near
from tests.support.ranks import found_by

SCRIPT = Path(__file__).with_name("worker.py")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("four")


@pytest.fixture(scope="module")
def ranks(folder):
    return found_by(SCRIPT, folder, 4)[0]


@pytest.fixture(scope="module")
def alone():
    return train(model=gpt(n_layer=4))


@pytest.mark.parametrize(
    "how", ["one", "three", "six", "gpipe", "side by side", "skipping"]
)
def test_four_processes_train_as_one(ranks, alone, how):
    wanted = alone
    if how == "skipping":
        update = {"nonfinite": "skip", "grad_clip": None}
        wanted = train(model=gpt(n_layer=4), update=update)
    for rank in ranks:
        assert_same(rank["many"][how], wanted)


def test_stages_leave_out_units_and_agree_on_the_loss(ranks, alone):
    losses = [rank["many"]["dropped"] for rank in ranks]
    assert losses.count(losses[0]) == 4
    assert losses[0] != alone["losses"]


def test_batch_norms_and_train_steps_are_those_of_one_process(ranks):
    found = ranks[0]["many"]
    norms = convolutions(accumulate=2)
    assert_near(found["norms"]["losses"], norms["losses"])
    assert_near(found["norms"]["mean"], norms["mean"])
    assert found["norms"]["seen"] == norms["seen"]
    assert_near(found["steps"], stepped(None))


def test_split_frozen_stages_and_uneven_micro_batches_train(ranks):
    found = ranks[3]["many"]
    assert_near(found["split"], fit(Stack(), None))
    assert_near(found["fed"], fit(FedStack(), None))
    assert_near(found["frozen"], fit(frozen(), None))
    update = {"cumulative_iters": 2}
    alone = fit(Stack(), None, 14, optimizer_config=update)
    assert_near(found["uneven"], alone)


@pytest.mark.parametrize("full", ["False", "True"])
def test_a_checkpoint_has_the_same_bits_under_any_number_of_stages(ranks, folder, full):
    saved, four = ranks[0]["bits"][full]
    assert saved == four
    assert saved == taken_up(folder / f"full-{full}", full == "True", None)
