"""A disk that is full, read-only, broken or gone: what was saved stays saved."""

import errno
import os
import shutil
import signal

import pytest

from devrun.checkpoint import find_latest
from tests.faults import harness
from tests.faults.harness import Child, run

LONG = {"runner": {"type": "IterBasedRunner", "max_iters": 10**6}}


ERRORS = ["ENOSPC", "EDQUOT", "EIO", "EROFS", "EACCES", "EMFILE"]


@pytest.mark.parametrize(
    ("code", "stride"),
    [("ENOSPC", 83), *(pytest.param(c, 1, marks=pytest.mark.faults) for c in ERRORS)],
)
def test_an_error_at_any_file_operation_of_a_run(
    code, stride, undisturbed, tmp_path, figures
):
    short = {
        "runner": {"type": "IterBasedRunner", "max_iters": 3},
        "checkpoint_config": {"interval": 1, "by_epoch": False, "max_keep_ckpts": 1},
    }
    reference, points, unsaid = undisturbed(**short), 0, 0
    for nth in range(1, 1000, stride):
        place = tmp_path / str(nth)
        place.mkdir()
        harness.write_config(place, **short)
        armed = f"any:{nth}:{code}"
        words = harness.train(place)
        output = place / "output"
        status, said = run(harness.counted, *words, output=output, failpoint=armed)
        root = place / "work" / "checkpoints"
        steps = harness.published(root)
        assert max(steps, default=-1) >= harness.acknowledged(place)
        assert "Traceback" not in said
        assert status in (0, 8), said
        if harness.operations(said) < nth:
            assert status == 0
            break
        points += 1
        unsaid += os.strerror(getattr(errno, code)) not in said
        status, said = run(harness.command, *words, output=output)
        assert status == 0, said
        ours = harness.fingerprint(harness.newest(root))
        theirs = harness.fingerprint(harness.newest(reference / "work/checkpoints"))
        # one that is saved after the last phase says of it that it is over
        ours["position"].pop("workflow"), theirs["position"].pop("workflow")
        assert ours == theirs
        shutil.rmtree(place)
    assert points * stride > 100
    figures(
        "F8",
        f"{code} at {points} of {points} file operations of a run: the old ones whole, "
        f"the next run ended bit-identical ({unsaid} without effect)",
    )


def renamed(work_dir):
    os.rename(work_dir, work_dir.with_name("elsewhere"))


@pytest.mark.parametrize("remove", harness.numbers(renamed, shutil.rmtree))
def test_a_work_dir_that_vanishes(remove, tmp_path, figures):
    """The run ends with status 8, or makes it anew and saves there: nothing is lost."""
    work_dir = tmp_path / "work"
    harness.write_config(
        tmp_path, **LONG, custom_hooks=[{"type": "Slow", "seconds": 0.02}]
    )
    child = Child(harness.command, *harness.train(tmp_path), output=tmp_path / "output")
    harness.wait_for(lambda: harness.acknowledged(tmp_path) > 0)
    while True:
        try:
            remove(work_dir)
            break
        except OSError:  # a checkpoint was being written into it
            continue
    root = work_dir / "checkpoints"
    harness.wait_for(lambda: not child.running() or find_latest(root))
    child.kill(signal.SIGTERM)
    status = child.wait()
    assert "Traceback" not in child.said()
    assert status in (8, 75), child.said()
    assert (find_latest(root) is not None) == (status == 75)
    figures("F8", f"work_dir gone under a run ({remove.__name__}): status {status}")
