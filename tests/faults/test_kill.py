"""Killed at any moment, a run goes on where it stood and ends with the same bits."""

import os
import random
import shutil
import sys
import time

import pytest

from tests.faults import harness
from tests.faults.harness import Child


def go_on(place, **options):
    """A child that trains on in `place`, from its newest checkpoint."""
    words = harness.train(place)
    return Child(harness.command, *words, output=place / "output", **options)


def checked(place, before, in_flight=0):
    """After a kill: all that is published is whole, and nothing saved is lost.

    `before` is what a start found; it must have gone on from exactly there. A save in
    the background is told of when it begins: `in_flight` updates later it is done.
    Returns the newest step, and whether the kill hit a write.
    """
    root = place / "work" / "checkpoints"
    found = max(harness.published(root), default=0)
    assert found >= max(harness.acknowledged(place) - in_flight, before)
    said = harness.updates(place)
    assert not said or said[0] == before + 1
    return found, bool(harness.leftovers(root))


def same_end(place, reference):
    """Every loss, and the last checkpoint, are those of the undisturbed run.

    A kill between a save and its acknowledgement leaves a loss unsaid.
    """
    said, expected = harness.losses(place), harness.losses(reference)
    assert said.items() <= expected.items()
    ours, theirs = (harness.newest(p / "work/checkpoints") for p in (place, reference))
    assert harness.fingerprint(ours) == harness.fingerprint(theirs)
    assert harness.leftovers(ours.parent) == []


def until_done(place, reference, kill, most=10_000, in_flight=0):
    """Start, `kill(child)`, until a run comes through; (kills, of them in a write)."""
    kills = writes = newest = 0
    while True:
        harness.forget_updates(place)
        child = go_on(place)
        kill(child)
        status = child.wait()
        newest, in_write = checked(place, newest, in_flight)
        if status == 0:
            same_end(place, reference)
            return kills, writes
        assert status == -9, child.said()
        kills, writes = kills + 1, writes + in_write
        if kills == most:
            gets_through(place, reference)
            return kills, writes


@pytest.mark.parametrize(
    ("wanted", "workers", "saving"),
    [
        (3, 0, {}),
        (2, 0, {"async": True}),
        *(
            pytest.param(200, workers, saving, marks=pytest.mark.faults)
            for workers in (0, 2)
            for saving in ({}, {"async": True})
        ),
    ],
)
def test_killed_at_random_moments(
    wanted, workers, saving, undisturbed, tmp_path, figures
):
    draw = random.Random(f"{wanted} {workers}")
    data = {**harness.CONFIG["data"], "workers_per_gpu": workers}
    reference = undisturbed(data=data)
    config = {**harness.CONFIG["checkpoint_config"], **saving}
    in_flight = config["interval"] if saving else 0
    lasted = undisturbed.seconds
    kills = writes = runs = 0

    def kill(child):
        time.sleep(draw.uniform(0, lasted))
        child.kill()

    # about every second kill meets a write; a small sample that met none goes on
    while kills < wanted or (not writes and kills < 20 * wanted):
        place = tmp_path / str(runs)
        place.mkdir()
        harness.write_config(place, data=data, checkpoint_config=config)
        left = max(wanted - kills, 1)
        found, inside = until_done(place, reference, kill, left, in_flight)
        kills, writes, runs = kills + found, writes + inside, runs + 1
        shutil.rmtree(place)
    assert writes
    figures(
        "F1",
        f"{kills} of {kills} kills at random moments resumed, {writes} of them in a "
        f"write; {runs} of {runs} runs ended bit-identical ({workers} loader workers"
        f"{', asynchronous' if saving else ''})",
    )


SHORT = {
    "runner": {"type": "IterBasedRunner", "max_iters": 4},
    "checkpoint_config": {"interval": 1, "by_epoch": False, "max_keep_ckpts": 2},
}


@pytest.mark.parametrize("stride", [61, pytest.param(1, marks=pytest.mark.faults)])
def test_killed_at_every_file_operation(stride, undisturbed, tmp_path, figures):
    reference, points = undisturbed(**SHORT), 0
    for nth in range(1, 10_000, stride):
        place = tmp_path / str(nth)
        place.mkdir()
        harness.write_config(place, **SHORT)
        armed = f"any:{nth}:kill"
        status = go_on(place, failpoint=armed).wait()
        checked(place, 0)
        if status == 0:
            break
        assert status == -9
        gets_through(place, reference)
        shutil.rmtree(place)
        points += 1
    assert points * stride > 100
    figures("F2", f"{points} of {points} file operations of a run killed and resumed")


def gets_through(place, reference):
    harness.forget_updates(place)
    child = go_on(place)
    assert child.wait() == 0, child.said()
    same_end(place, reference)


EPOCHS = {
    "data": {**harness.CONFIG["data"], "val": {"type": "Noisy", "length": 4}},
    "workflow": [["train", 1]],
    "runner": {"type": "EpochBasedRunner", "max_epochs": 3},
    "checkpoint_config": {"interval": 1},
    "evaluation": {"metric": "accuracy", "save_best": "accuracy"},
}


def at_stage(stage, nth=1):
    """Changes of the config by which a run ends there, a bit later each time."""

    def changes(number):
        cut = {"type": "KillAt", "stage": stage, "nth": nth, "after": number / 2e3}
        return {"custom_hooks": [*harness.CONFIG["custom_hooks"], cut]}

    return changes


def in_an_evaluation(number):
    """At one of its four samples, in the first, second or third evaluation."""
    val = {"at": number % 4, "nth": 1 + number // 4 % 3, "fault": "dies"}
    data = EPOCHS["data"]
    return {"data": {**data, "val": {**data["val"], **val}}}


PHASES = {
    "start of the run": at_stage("before_run"),
    "first iteration": at_stage("before_train_iter"),
    "an update": at_stage("after_train_iter", 7),
    "an evaluation": in_an_evaluation,
    "end of an epoch": at_stage("after_train_epoch"),
    "end of the run": at_stage("after_run"),
}


@pytest.mark.faults
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("times", [20])
def test_killed_in_each_phase(phase, times, undisturbed, tmp_path, figures):
    reference = undisturbed(**EPOCHS)
    for number in range(times):
        place = tmp_path / str(number)
        place.mkdir()
        harness.write_config(place, **{**EPOCHS, **PHASES[phase](number)})
        assert go_on(place).wait() == -9
        checked(place, 0)
        harness.write_config(place, **EPOCHS)
        gets_through(place, reference)
    figures("F4", f"{times} of {times} kills in the phase '{phase}' resumed exactly")


def ended_by_a_file(nth, work_dir, *words):
    """`devrun WORDS`, killed when it opens or renames its nth file in `work_dir`."""
    left = nth

    def audit(event, arguments):
        nonlocal left
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.truncate"):
            left -= str(arguments[0]).startswith(str(work_dir))
            if left == 0:
                os.kill(os.getpid(), 9)

    sys.addaudithook(audit)
    return harness.command(*words)


@pytest.mark.faults
@pytest.mark.parametrize("times", [20])
def test_killed_while_its_files_are_made(times, undisturbed, tmp_path, figures):
    """The config, the record, the logs and the lock of a run, and of one resumed."""
    reference, points = undisturbed(**SHORT), 0
    for number in range(2 * times):
        place = tmp_path / str(number)
        place.mkdir()
        harness.write_config(place, **SHORT)
        if number % 2:
            armed = "any:150:kill"
            assert go_on(place, failpoint=armed).wait() == -9
            harness.forget_updates(place)
        words = harness.train(place)
        before = max(harness.published(place / "work" / "checkpoints"), default=0)
        how = (ended_by_a_file, 1 + number // 2, place / "work")
        status = Child(*how, *words, output=place / "output").wait()
        points += status == -9
        checked(place, before)
        gets_through(place, reference)
    assert points > times
    figures("F4", f"{points} of {points} kills while files of the run were made")
