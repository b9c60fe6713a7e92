"""Bad data, bad numbers, too little memory, a hang: survived, or ended and said."""

import signal
import time

import pytest

from devrun.checkpoint import find_latest, read_checkpoint
from tests.faults import harness
from tests.faults.harness import Child, run


def outcome(place, seconds=60, **changes):
    """(status, output) of a run of the config with `changes`."""
    harness.write_config(place, **changes)
    words = harness.train(place)
    output = place / "output"
    return run(harness.command, *words, output=output, seconds=seconds)


def error_of(said):
    if "resource_sharer" not in said:  # which mourns a killed worker on stderr itself
        assert "Traceback" not in said
    (line,) = [x for x in said.splitlines() if x.startswith("devrun: error: ")]
    return line


def data(workers=2, options=None, **train):
    return {
        **harness.CONFIG["data"],
        "workers_per_gpu": workers,
        "train": {"type": "Noisy", **train},
        **(options or {}),
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_raises_is_named(workers, tmp_path):
    status, said = outcome(tmp_path, data=data(workers, at=7))
    assert status == 4
    line = error_of(said)
    assert "sample 7" in line
    assert "cannot be decoded" in line
    assert "epoch 1" in line


@pytest.mark.faults
def test_a_worker_that_hangs_is_ended(tmp_path, figures):
    start = time.monotonic()
    hanging = data(2, {"timeout": 3}, at=7, fault="hangs")
    status, said = outcome(tmp_path, data=hanging)
    assert status == 7
    error_of(said)
    figures(
        "F12", f"a hanging loader worker: status 7 in {time.monotonic() - start:.0f} s"
    )


def test_the_watchdog_ends_a_run_that_does_not_move(tmp_path, figures):
    hooks = [*harness.CONFIG["custom_hooks"], {"type": "Slow", "seconds": 1000}]
    start = time.monotonic()
    status, said = outcome(
        tmp_path, custom_hooks=hooks, watchdog={"timeout": 3, "first_timeout": 5}
    )
    seconds = time.monotonic() - start
    assert status == 7, said
    assert "Slow" in said or "after_train_iter" in said  # the stack says where
    figures("F19", f"a hook that sleeps: status 7 with the stacks in {seconds:.0f} s")


@pytest.mark.faults
def test_the_watchdog_sees_through_c_code(tmp_path, figures):
    """A call that holds the interpreter's lock: no Python code can run meanwhile."""
    hooks = [*harness.CONFIG["custom_hooks"], {"type": "Stuck"}]
    status, said = outcome(
        tmp_path, custom_hooks=hooks, watchdog={"timeout": 3, "first_timeout": 5}
    )
    assert status in (1, 7), said  # Python's own dumper knows no other than 1
    assert "Stuck" in said or "parts.py" in said or "iter.py" in said
    figures("F19", "C code that holds the interpreter's lock: ended with the stacks")


@pytest.mark.parametrize(
    "where", [*harness.numbers("weight", "input"), *harness.later("gradient")]
)
@pytest.mark.parametrize("value", harness.numbers("nan", "inf"))
def test_a_number_that_is_none_stops_the_run_unsaved(where, value, tmp_path, figures):
    """The last checkpoint is that of before, and finite."""
    poison = {"type": "Poison", "at": 7, "where": where, "value": value}
    hooks = [*harness.CONFIG["custom_hooks"], poison]
    status, said = outcome(tmp_path, custom_hooks=hooks)
    assert status == 5, said
    error_of(said)
    newest = find_latest(tmp_path / "work" / "checkpoints")
    assert int(newest.name[5:]) <= 7
    saved = read_checkpoint(newest)
    assert all(t.isfinite().all() for t in saved["model"].values())
    figures("F16", f"{value} in a {where}: status 5, nothing of it saved")


def test_out_of_memory_halves_the_micro_batch(tmp_path, figures):
    """The update keeps its samples; above two at once there is not enough memory."""
    changes = {
        "model": {"type": "noisy_net", "room": 2},
        "data": {**data(0, length=16), "samples_per_gpu": 8},
        "runner": {"type": "IterBasedRunner", "max_iters": 6},
        "optimizer_config": {"micro_batch": "auto"},
    }
    status, said = outcome(tmp_path, **changes)
    assert status == 0, said
    assert harness.updates(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert "out of memory" in said.lower()
    figures("F18", "too little memory for 8 samples at once: goes on with less")


def test_two_runs_in_one_work_dir(tmp_path, figures):
    slow = [*harness.CONFIG["custom_hooks"], {"type": "Slow", "seconds": 0.2}]
    harness.write_config(tmp_path, custom_hooks=slow)
    words = harness.train(tmp_path)
    first = Child(harness.command, *words, output=tmp_path / "first")
    harness.wait_for(lambda: harness.acknowledged(tmp_path) > 0)
    status, said = run(harness.command, *words, output=tmp_path / "second")
    assert status == 2
    assert str(first.pid) in error_of(said)
    first.kill()
    first.wait()
    harness.write_config(tmp_path)
    status, said = run(harness.command, *words, output=tmp_path / "third")
    assert status == 0, said  # the lock of a killed run is no obstacle
    figures(
        "F25", "a second run: status 2, with the owner's pid; a dead owner: taken over"
    )


def test_a_signal_while_saving_asynchronously(undisturbed, tmp_path, figures):
    """What is in flight is finished first; the run then goes on to the same bits."""
    saving = {**harness.CONFIG["checkpoint_config"], "async": True}
    harness.write_config(tmp_path, checkpoint_config=saving)
    words = harness.train(tmp_path)
    child = Child(harness.command, *words, output=tmp_path / "output")
    harness.wait_for(lambda: len(harness.updates(tmp_path)) > 6)
    child.kill(signal.SIGTERM)
    assert child.wait() == 75, child.said()
    root = tmp_path / "work" / "checkpoints"
    assert max(harness.published(root)) == harness.updates(tmp_path)[-1]
    assert harness.leftovers(root) == []
    status, said = run(harness.command, *words, output=tmp_path / "output")
    assert status == 0, said
    reference = harness.newest(undisturbed() / "work" / "checkpoints")
    assert harness.fingerprint(harness.newest(root)) == harness.fingerprint(reference)
    figures("F9", "a signal with an asynchronous save in flight: saved, bit-identical")
