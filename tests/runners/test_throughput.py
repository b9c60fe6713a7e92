"""The benchmark of whole updates, on few of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import zygote

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "throughput.py"
SMALL = ["--size", "cpu", "--cases", "vit", "--rounds", "2", "--updates", "1"]


@pytest.mark.slow
def test_arms_in_turns_each_have_a_rate_and_ratios():
    arms = ["tuned", "plain", "devrun fast", "devrun plain"]
    done = zygote.run([PROGRAM, *SMALL, "--arms", *arms], timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vit, batch 16 of (3, 32, 32), 2 rounds" in done.stdout
    rows = {
        cells[1]: cells[2:6]
        for line in done.stdout.splitlines()
        if (cells := [cell.strip() for cell in line.split("|")])[1:2] != [""]
        and len(cells) > 6
    }
    for arm in arms:
        rate, of_tuned, of_plain, first = rows[arm]
        assert float(rate) > 0
        assert float(of_tuned.split()[0]) > 0
        assert float(of_plain.split()[0]) > 0
        assert float(first.removesuffix(" s")) > 0


@pytest.mark.slow
def test_arms_without_time_are_named_as_such():
    done = zygote.run(
        [PROGRAM, *SMALL, "--arms", "plain", "--minutes", "0.001"], timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| plain | no time was left: give more by --minutes" in done.stdout
