"""A process that does not move, or is slow: who waits for whom, and every stack."""

import re

import pytest

from tests.launch.conftest import told


def test_a_rank_that_hangs_ends_the_run_with_every_stack(place):
    watchdog = {"timeout": 3, "first_timeout": 60}
    place.write({"type": "Strike", "how": "stalls"}, watchdog=watchdog)
    status, _, err = place.run()
    assert status == 7, err
    (line,) = [line for line in told(err) if "error" in line]
    assert re.search(
        r"no iteration for \d+ s \(epoch 1, iteration 7\): the run hangs", line
    )
    (log,) = place.work_dir.glob("*.log")
    text = log.read_text()
    assert "rank 0: process" in text and "rank 1: process" in text
    assert "in stalls" in text, "the line in which rank 1 stands"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            {"watchdog": {"timeout": 3, "first_timeout": 60}},
            r"the run hangs.*rank 1 did not answer",
        ),
        ({"dist_params": {"timeout": 15}}, r"error: rank 1 did not answer"),
    ],
    ids=["watchdog", "timeout"],
)
def test_a_rank_that_is_frozen_is_named(place, section, said):
    place.write({"type": "Strike", "how": "freezes"}, **section)
    status, _, err = place.run()
    assert status == 7, err
    (line,) = [line for line in told(err) if "error" in line]
    assert re.search(said, line)
    assert "memory" not in line
