"""A process that does not move, or is slow: who waits for whom, and every stack."""

from __future__ import annotations

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
        r"no iteration for \d s \(epoch 1, iteration 7\): the run hangs", line
    )
    assert re.search(r"rank 0 waits in gloo:\w+ \(number \d+ of", line)
    assert "rank 1 did not come to it" in line
    (log,) = place.work_dir.glob("*.log")
    text = log.read_text()
    assert "rank 0: process" in text and "rank 1: process" in text
    assert "in stalls" in text, "the line in which rank 1 stands"


@pytest.mark.slow
def test_a_hang_is_started_again(place):
    watchdog = {"timeout": 3, "first_timeout": 60}
    place.write({"type": "Strike", "how": "stalls"}, watchdog=watchdog)
    status, _, err = place.run("--max-restarts", 1)
    assert status == 0, err
    assert "all start again (1 of 1)" in err
