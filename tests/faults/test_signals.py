"""Told to stop at any moment, a run saves, leaves nobody behind, and goes on later."""

import random
import signal
import time

import pytest

from devrun.checkpoint import find_latest
from tests.faults import harness
from tests.faults.harness import Child, numbers

STATUS = {"SIGTERM": 75, "SIGUSR1": 75, "SIGINT": 130}
WITH_WORKERS = {
    "data": {
        **harness.CONFIG["data"],
        "workers_per_gpu": 2,
        "train": {"type": "Noisy", "length": 60},
    },
}


ALL = [(100, name, group) for name in STATUS for group in (False, True)]


@pytest.mark.parametrize(
    ("times", "name", "group"),
    [(1, "SIGTERM", True), *(pytest.param(*a, marks=pytest.mark.faults) for a in ALL)],
)
def test_a_signal_at_any_moment(name, group, times, undisturbed, tmp_path, figures):
    draw = random.Random(f"{name} {group}")
    reference, lasted = undisturbed(**WITH_WORKERS), undisturbed.seconds
    stopped = late = early = run = 0
    while stopped < times:
        place = tmp_path / str(run)
        place.mkdir()
        run += 1
        harness.write_config(place, **WITH_WORKERS)
        while True:
            words = harness.train(place)
            output = place / "output"
            said = output.read_text() if output.exists() else ""
            before = harness.updates(place)
            child = Child(harness.command, *words, output=output)
            harness.wait_for(lambda: said != child.said() or not child.running())  # noqa: B023
            time.sleep(draw.uniform(0, 0.9 * lasted))
            done = harness.updates(place)
            child.kill(signal.Signals[name], group=group)
            status = child.wait()
            assert "Traceback" not in child.said()
            assert harness.living(child.pid) == []
            if status == 0:  # it was over before
                late += 1
                break
            unmoved = harness.updates(place) == before
            if status in (130, 143) and unmoved:  # before its first update
                early += 1
                continue
            assert status == STATUS[name], child.said()
            newest = find_latest(place / "work" / "checkpoints")
            after = harness.updates(place)
            assert int(newest.name[5:]) == after[-1]
            assert not done or after[-1] <= done[-1] + 2  # at most one more, and the
            stopped += 1  # one that was done but not yet written down
            if stopped == times:
                break
        if status != 0:
            child = Child(
                harness.command, *harness.train(place), output=place / "output"
            )
            assert child.wait() == 0, child.said()
        ours, theirs = (
            harness.newest(p / "work/checkpoints") for p in (place, reference)
        )
        assert harness.fingerprint(ours) == harness.fingerprint(theirs)
    how = "process group" if group else "process"
    figures(
        "F10",
        f"{stopped} of {stopped} times {name} to the {how} saved and went on "
        f"bit-identical, with 2 loader workers ({early} more came before the first "
        f"update, {late} after the end)",
    )


def test_a_second_signal_leaves_at_once(tmp_path, figures):
    data = {**harness.CONFIG["data"], "train": {"type": "Noisy", "length": 10_000}}
    slow = [*harness.CONFIG["custom_hooks"], {"type": "Slow", "seconds": 600}]
    harness.write_config(tmp_path, data=data, custom_hooks=slow)
    words = harness.train(tmp_path)
    child = Child(harness.command, *words, output=tmp_path / "output")
    harness.wait_for(lambda: "schedule:" in child.said())
    time.sleep(0.3)
    child.kill(signal.SIGTERM)
    harness.wait_for(lambda: "once more leaves at once" in child.said())
    child.kill(signal.SIGTERM)
    assert child.wait(60) == 143, "it did not wait for the update to end"
    assert harness.living(child.pid) == []
    figures("F10", "a second signal left in the middle of an update, status 143")


@pytest.mark.parametrize("times", numbers(1, 30))
def test_a_signal_inside_a_write(times, undisturbed, tmp_path, figures):
    """The write that it meets is finished, and the one that it asks for follows."""
    reference, inside = undisturbed(), 0
    for number in range(times):
        place = tmp_path / str(number)
        place.mkdir()
        harness.write_config(place)
        root = place / "work" / "checkpoints"
        words = harness.train(place)
        child = Child(harness.command, *words, output=place / "output")
        harness.wait_for(lambda: harness.leftovers(root) or not child.running())  # noqa: B023
        child.kill(signal.SIGTERM)
        inside += bool(harness.leftovers(root))
        assert child.wait() == 75, child.said()
        assert max(harness.published(root)) == harness.updates(place)[-1]
        again = Child(harness.command, *words, output=place / "output")
        assert again.wait() == 0, again.said()
        assert harness.fingerprint(harness.newest(root)) == harness.fingerprint(
            harness.newest(reference / "work" / "checkpoints")
        )
    figures("F10", f"{times} of {times} signals at a write saved ({inside} inside it)")
