"""Unusual processes and places to run in, and runs that are long."""

import os
import resource
import signal
import statistics
import time
from pathlib import Path

import pytest

from devrun.checkpoint import find_latest
from tests.faults import harness
from tests.faults.harness import Child, run

SHORT = {"runner": {"type": "IterBasedRunner", "max_iters": 4}}


def finished(
    place, function=harness.command, work_dir=None, environment=None, **changes
):
    """(status, output) of a short run."""
    place.mkdir(parents=True, exist_ok=True)
    harness.write_config(place, **{**SHORT, **changes})
    words = harness.train(place, work_dir=work_dir)
    return run(function, *words, output=place / "output", environment=environment)


def tight_mask(*words):
    os.umask(0o077)
    return harness.command(*words)


def wide_mask(*words):
    os.umask(0)
    return harness.command(*words)


def few_files(*words):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    return harness.command(*words)


def no_home(*words):
    os.environ.pop("HOME", None)
    return harness.command(*words)


def plain_locale(*words):
    os.environ.update(LC_ALL="C", LANG="C", TZ="Pacific/Kiritimati")
    time.tzset()
    return harness.command(*words)


PLACES = [
    "with space",
    "ünïcødé",
    "long" * 40,
    "-dash",
    "a'quote\"",
    "dollar$HOME",
    "%d{}",
]


@pytest.mark.parametrize(
    "how",
    [
        *harness.numbers(few_files, tight_mask),
        *harness.later(wide_mask, no_home, plain_locale),
    ],
)
def test_unusual_processes(how, tmp_path, figures):
    status, said = finished(tmp_path, how)
    assert status == 0, said
    assert find_latest(tmp_path / "work" / "checkpoints") is not None
    figures("F26", f"a run with {how.__name__.replace('_', ' ')} ended well")


@pytest.mark.faults
@pytest.mark.parametrize("name", PLACES)
def test_unusual_places(name, tmp_path, figures):
    status, said = finished(tmp_path / "x", work_dir=tmp_path / name / "work")
    assert status == 0, said
    assert find_latest(tmp_path / name / "work" / "checkpoints") is not None
    figures("F26", f"a run in {name[:12]!r} ended well")


def test_a_clock_that_goes_back(tmp_path, figures):
    """The newest is found by its number: times of files and manifests do not matter."""
    assert finished(tmp_path)[0] == 0
    root = tmp_path / "work" / "checkpoints"
    for number, path in enumerate(sorted(root.glob("step-*"))):
        os.utime(path, (1e9 - number * 1e6,) * 2)
    assert find_latest(root) == harness.newest(root)
    figures("F26", "file times in reverse: the newest by number is taken")


SECONDS = int(os.environ.get("DEVRUN_SOAK_SECONDS", 600))


def used(pid):
    """KiB of memory, descriptors and threads of a process."""
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    memory = int(status["VmRSS"].split()[0])
    return memory, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])


@pytest.mark.faults
def test_a_long_run_does_not_grow(tmp_path, figures):
    """One process that saves in the background all the time, and has loader workers."""
    data = {**harness.CONFIG["data"], "workers_per_gpu": 2}
    data["train"] = {"type": "Noisy", "length": 2000}
    saving = {**harness.CONFIG["checkpoint_config"], "interval": 20, "async": True}
    harness.write_config(
        tmp_path, data=data, checkpoint_config=saving, optimizer_config={},
        runner={"type": "IterBasedRunner", "max_iters": 10**9},
        log_config={"interval": 500, "hooks": [{"type": "TextLoggerHook"}]},
    )  # fmt: skip
    root = tmp_path / "work" / "checkpoints"
    child = Child(harness.command, *harness.train(tmp_path), output=tmp_path / "output")
    harness.wait_for(lambda: root.exists() and harness.whole(root), 60)
    found = []
    for _ in range(SECONDS):
        time.sleep(1)
        found.append(used(child.pid))
        assert len(list(root.glob("step-*"))) <= 5
    child.kill(signal.SIGTERM)
    assert child.wait() == 75, child.said()
    quarter = len(found) // 4
    early, late = found[quarter : 2 * quarter], found[-quarter:]
    growth = statistics.median(row[0] for row in late) - statistics.median(
        row[0] for row in early
    )
    assert growth < 1024
    for column in (1, 2):
        most = [max(row[column] for row in rows) for rows in (early, late)]
        assert most[1] <= most[0] + 2  # one look may fall into a write, another not
    steps = harness.newest(root).name
    figures(
        "F31",
        f"one run of {SECONDS} s to {steps}, saving each 20th update: its memory grew "
        f"by {growth:.0f} KiB in the second half, descriptors and threads by none",
    )
