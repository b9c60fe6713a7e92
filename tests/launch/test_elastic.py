"""A process that is killed in the middle: all start again, and nothing is lost."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from pathlib import Path

import pytest

from devrun.checkpoint import list_checkpoints
from tests.faults.harness import fingerprint, newest
from tests.launch.conftest import PATIENCE, children, told

UPDATES = 24
TOOK = {"type": "Took", "path": "{place}/samples"}
SLOW = {"type": "Slow", "seconds": 0.03}
ENDED = {"runner": {"type": "IterBasedRunner", "max_iters": UPDATES}}
KINDS = ("ddp", "fsdp")
"""How the processes divide the model: saved by the first of them, or by each."""
MOST = 9
"""Kills of a job."""


def samples(place):
    """(rank, update) -> the samples it took last; and how often each was done."""
    found, times = {}, {}
    for path in place.path.glob("samples-*"):
        rank = int(path.name.split("-")[1])
        for line in path.read_text().splitlines():
            _, update, *rows = map(int, line.split())
            at = rank, update
            assert found.setdefault(at, rows) == rows, "another try takes the same"
            times[at] = times.get(at, 0) + 1
    return found, times


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Of a kind: the samples and the last checkpoint of a run without a fault."""
    from tests.launch.conftest import Place

    @functools.cache
    def run(kind="ddp"):
        place = Place(tmp_path_factory.mktemp("undisturbed"))
        place.write(TOOK, **ENDED, parallel={"type": kind})
        status, _, err = place.run()
        assert status == 0, err
        found, times = samples(place)
        assert set(times.values()) == {1}
        assert len(found) == 2 * UPDATES
        return found, fingerprint(newest(place.work_dir / "checkpoints"))

    return run


def test_a_killed_process_costs_only_the_updates_since_the_save(place, undisturbed):
    place.write(TOOK, {"type": "Strike", "how": "dies", "at": 10}, **ENDED)
    status, _, err = place.run("--max-restarts", 2)
    assert status == 0, err
    assert [line for line in told(err) if "all start again (1 of 2)" in line]
    found, times = samples(place)
    assert found == undisturbed()[0]
    again = {update for (_, update), number in times.items() if number > 1}
    assert again == {9, 10}, "saved at 8, killed before 11 was done"
    assert fingerprint(newest(place.work_dir / "checkpoints")) == undisturbed()[1]
    assert not place.path.joinpath("work-2").exists()


@pytest.mark.slow
def test_what_is_there_of_another_run_is_not_taken_up(place):
    """Killed before its own first save, with the run of another seed in the folder."""
    place.write(**ENDED)
    assert place.run("--num-devices", 1, "--seed", 99)[0] == 0
    place.write(TOOK, {"type": "Strike", "how": "dies", "at": 2}, **ENDED)
    status, _, err = place.run("--overwrite", "--max-restarts", 1)
    assert status == 0, err
    _, times = samples(place)
    assert {update for (_, update), number in times.items() if number > 1} <= {1, 2}
    assert min(times) == (0, 1)
    assert len(list(place.work_dir.glob("previous-*"))) == 1


@pytest.mark.slow
def test_when_all_restarts_are_used_up_the_last_error_is_said(place):
    strike = {"type": "Strike", "how": "raises", "starts": 9}
    place.write(strike)
    status, _, err = place.run("--max-restarts", 1)
    assert status == 4
    *before, last = told(err)
    assert last == "devrun: error: rank 1: sample 7 is broken (epoch 1, iteration 7)"
    assert len([line for line in before if "start again" in line]) == 1


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(100, marks=pytest.mark.faults),
    ],
    ids=str,
)
def test_killed_at_random_moments(times, place, undisturbed):
    """Any process, at any moment from its start on, saving included.

    Jobs take turns to have whole weights on each process and divided ones.
    """
    draw, killed, done = random.Random(times), 0, 0
    while killed < times:
        for path in (*place.path.glob("samples-*"), place.path / "run.yaml"):
            path.unlink(missing_ok=True)
        kind = KINDS[done % len(KINDS)]
        wanted, saved = undisturbed(kind)
        place.write(TOOK, SLOW, **ENDED, parallel={"type": kind})
        done += 1
        name = f"work-{done}"
        killed += _run_with_kills(place, name, min(MOST, times - killed), draw)
        found, repeats = samples(place)
        assert found == wanted
        assert max(repeats.values()) <= MOST + 1
        last = newest(place.path / name / "checkpoints")
        assert fingerprint(last) == saved
        assert all(i.problem is None for i in list_checkpoints(last.parent))
        print(f"{killed} kills, {done} jobs", flush=True)


def _run_with_kills(place, name, most, draw):
    """A run to its end in `work_dir` `name`, with kills of a process; how many."""
    words = ("train", "run.yaml", "--num-devices", 2, "--work-dir", name)
    with open(place.path / f"{name}.said", "w+") as output:
        process = place.start(
            *words, "--max-restarts", most, "--no-progress",
            output=output,
        )  # fmt: skip
        killed, end = 0, time.monotonic() + MOST * PATIENCE
        while killed < most and process.poll() is None:
            # half of them as a checkpoint is written, the others at any time
            if draw.random() < 0.5:
                _wait_for_a_save(place.path / name / "checkpoints", process)
                time.sleep(draw.random() * 0.02)
            else:
                time.sleep(draw.uniform(0, 8))
            if ranks := children(process.pid):
                os.kill(draw.choice(ranks), signal.SIGKILL)
                killed += 1
                while process.poll() is None and set(ranks) & set(
                    children(process.pid)
                ):
                    time.sleep(0.02)  # the others follow, then all start again
        status = process.wait(max(1, end - time.monotonic()))
    assert status == 0, (place.path / f"{name}.said").read_text()[-3000:]
    return killed


def _wait_for_a_save(root: Path, process):
    end = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < end:
        if root.is_dir() and any(e.name.startswith(".") for e in root.iterdir()):
            return
        time.sleep(0.001)
