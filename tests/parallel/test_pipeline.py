"""Pipelines of four stages, and of two side by side, on four processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel.staged import FedStack, Stack, fit, frozen, stepped, taken_up
from tests.parallel.worker import convolutions, gpt, train
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
        found = rank["many"][how]
        assert found["losses"] == pytest.approx(wanted["losses"], abs=2e-6)
        for name, values in wanted["weights"].items():
            if found["weights"][name] is not None:
                known = pytest.approx(values, abs=2e-5)
                assert found["weights"][name] == known, name


def test_stages_leave_out_units_and_agree_on_the_loss(ranks, alone):
    losses = [rank["many"]["dropped"] for rank in ranks]
    assert losses.count(losses[0]) == 4
    assert losses[0] != alone["losses"]


def test_batch_norms_and_train_steps_are_those_of_one_process(ranks):
    found = ranks[0]["many"]
    norms = convolutions(accumulate=2)
    assert found["norms"]["losses"] == pytest.approx(norms["losses"], abs=2e-6)
    assert found["norms"]["mean"] == pytest.approx(norms["mean"], abs=1e-6)
    assert found["norms"]["seen"] == norms["seen"]
    assert found["steps"] == pytest.approx(stepped(None), abs=2e-6)


def test_split_edges_frozen_stages_and_uneven_micro_batches_train(ranks):
    found = ranks[3]["many"]
    assert found["edges"] == pytest.approx(fit(Stack(), None), abs=2e-6)
    assert found["fed"] == pytest.approx(fit(FedStack(), None), abs=2e-6)
    assert found["frozen"] == pytest.approx(fit(frozen(), None), abs=2e-6)
    update = {"cumulative_iters": 2}
    alone = fit(Stack(), None, 14, optimizer_config=update)
    assert found["uneven"] == pytest.approx(alone, abs=2e-6)


@pytest.mark.parametrize("full", ["False", "True"])
def test_a_checkpoint_has_the_same_bits_under_any_number_of_stages(ranks, folder, full):
    saved, four = ranks[0]["bits"][full]
    assert saved == four
    assert saved == taken_up(folder / f"full-{full}", full == "True", None)
