"""Two processes, of which one fails: nobody waits for ever, both go on together."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tests.faults import harness

pytestmark = pytest.mark.faults
UPDATES, HANG, PATIENCE = 60, 10, 300
"""Of a run; the seconds after which its watchdog ends a process that waits; and those
after which this test gives up, on a machine however busy."""
CHANGES = {
    "model": {"type": "MLP", "in_features": 4, "hidden": [8], "num_classes": 2},
    "data": {
        "samples_per_gpu": 4,
        "workers_per_gpu": 0,
        "train": {"type": "Numbered", "length": 40},
    },
    "optimizer_config": {},
    "launcher": "pytorch",
    "watchdog": {"timeout": HANG, "first_timeout": PATIENCE},
}


@contextmanager
def two_ranks(place, *hooks, updates=UPDATES, restarts=3):
    """torchrun on two processes, in a session of its own."""
    hooks = [
        *harness.CONFIG["custom_hooks"],
        {"type": "WhichSamples", "path": str(place / "samples-{rank}-{start}")},
        {"type": "Slow", "seconds": 0.02},
        *hooks,
    ]
    runner = {"type": "IterBasedRunner", "max_iters": updates}
    harness.write_config(place, **CHANGES, runner=runner, custom_hooks=hooks)
    words = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--max-restarts", str(restarts), "--standalone", "-m", "devrun",
        *map(str, harness.train(place)),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
    with open(place / "output", "ab") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=output, start_new_session=True,
            env=environment,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert harness.living(process.pid) == []


def lines(place, rank, start=0):
    """What the updates of one process trained on, in the order of doing."""
    path = place / f"samples-{rank}-{start}"
    return path.read_text().splitlines() if path.exists() else []


def samples(place, rank):
    """The same over all starts; an update that was done again is one line."""
    return {
        line
        for path in place.glob(f"samples-{rank}-*")
        for line in path.read_text().splitlines()
    }


def began(place, start):
    """The first update of each process in that start, once both have begun."""
    first = [lines(place, rank, start)[:1] for rank in (0, 1)]
    return [int(line.split()[0]) for (line,) in first] if all(first) else None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Where a run went to its end, and how long one takes to begin."""
    place = tmp_path_factory.mktemp("ranks")
    start = time.monotonic()
    with two_ranks(place) as process:
        harness.wait_for(lambda: began(place, 0), PATIENCE)
        seconds = time.monotonic() - start
        assert process.wait(PATIENCE) == 0, (place / "output").read_text()[-2000:]
    return place, seconds


FAULTS = {"dies": 1, "raises": 1, "is_slow": 0, "stalls": 1}
"""And how often torchrun starts the processes anew for it."""


@pytest.mark.parametrize("times", [10])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_rank_fails(fault, times, undisturbed, tmp_path, figures):
    """Both train on at the same update, on the samples of a run without the fault."""
    reference, to_begin = undisturbed
    draw, longest = random.Random(fault), 0.0
    for number in range(times):
        place = tmp_path / str(number)
        place.mkdir()
        struck, at = place / "struck", draw.randrange(UPDATES)
        hook = {"type": "OneRank", "rank": number % 2, "at": at, "fault": fault}
        with two_ranks(place, {**hook, "path": str(struck)}) as process:
            harness.wait_for(struck.exists, PATIENCE)
            start = time.monotonic()
            if FAULTS[fault]:
                first, second = harness.wait_for(lambda: began(place, 1), PATIENCE)  # noqa: B023
                longest = max(longest, time.monotonic() - start)
                assert first == second
                assert at - 3 < first <= at + 1  # a checkpoint each third update
            assert process.wait(PATIENCE) == 0, (place / "output").read_text()[-2000:]
        assert not list(place.glob(f"samples-*-{FAULTS[fault] + 1}"))
        for rank in (0, 1):
            assert samples(place, rank) == samples(reference, rank)
        ours, theirs = (
            harness.fingerprint(harness.newest(p / "work" / "checkpoints"))
            for p in (place, reference)
        )
        assert ours == theirs
    assert longest < HANG + 5 + 3 * to_begin  # the machine may have become slower
    again = f", both on again within {longest:.0f} s" if FAULTS[fault] else ""
    figures(
        "F11",
        f"{times} of {times} times one rank {fault}: the same samples and bits{again}",
    )
