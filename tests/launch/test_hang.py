"""A process that does not move, or is slow: who waits for whom, and every stack."""

from __future__ import annotations

import json
import re

import pytest

from tests.launch.conftest import PATIENCE, told


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


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, 0.0])
def test_a_slow_rank_is_named(place, seconds):
    runner = {"type": "IterBasedRunner", "max_iters": 30}
    place.write({"type": "SlowRank", "rank": 1, "seconds": seconds}, runner=runner)
    status, out, err = place.run()
    assert status == 0, err
    if not seconds:
        assert "is the slowest" not in out
        assert (
            len(json.loads((place.work_dir / "run.json").read_text())["rank_ms"]) == 2
        )
        return
    assert "processes: rank 1 is the slowest: " in out
    page = place.start("report", "work")
    page.communicate(timeout=PATIENCE)
    assert "rank 1 is the slowest: " in (place.path / "report.html").read_text()
    assert err.count("rank 1 is slow, and the others wait for it") == 1
    assert "rank 0 is slow" not in err
