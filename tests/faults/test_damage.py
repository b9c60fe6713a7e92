"""Whatever has happened to a checkpoint is found before any of it is used.

Damage of each kind is in tests/checkpoint/test_damage.py; here it is of a run's own, by
the hundred.
"""

import os
import random
import shutil

import pytest

from devrun.checkpoint import find_latest, read_checkpoint
from devrun.errors import CheckpointError
from tests.faults import harness
from tests.faults.harness import later, run


@pytest.fixture
def finished(undisturbed, tmp_path):
    """A copy of a finished run, with three checkpoints; its place."""
    shutil.copytree(undisturbed(), tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def root_of(place):
    return place / "work" / "checkpoints"


def refused(damaged, before, caplog):
    """`damaged` is refused in one line that names it, and `before` taken instead."""
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(damaged)
    assert str(caught.value).isprintable()
    caplog.clear()
    assert find_latest(damaged.parent) == before
    (record,) = caplog.records
    assert damaged.name in record.getMessage()


def two(place):
    """The newest checkpoint, which is to be damaged, and the one before."""
    steps = sorted(root_of(place).glob("step-*"))
    return steps[-1], steps[-2]


@pytest.mark.parametrize("lengths", later(100))
def test_any_truncation(lengths, finished, caplog, figures):
    new, old = two(finished)
    draw, count = random.Random(0), 0
    for name in sorted(os.listdir(new)):
        whole = (new / name).read_bytes()
        for length in {0, *(draw.randrange(len(whole)) for _ in range(lengths))}:
            (new / name).write_bytes(whole[:length])
            refused(new, old, caplog)
            count += 1
        (new / name).write_bytes(whole)
    figures("F5", f"{count} of {count} truncated files found, the one before taken")


@pytest.mark.faults
def test_missing_extra_and_swapped_files(finished, caplog, figures):
    new, old = two(finished)
    count = 0
    for name in sorted(os.listdir(new)):
        whole = (new / name).read_bytes()
        (new / name).unlink()
        refused(new, old, caplog)
        (new / name).write_bytes((old / name).read_bytes())
        if whole != (old / name).read_bytes():  # the same bytes are no swap
            if name != "MANIFEST.json":
                refused(new, old, caplog)
            else:
                with pytest.raises(CheckpointError):
                    read_checkpoint(new)
            count += 1
        (new / name).write_bytes(whole)
        count += 1
    (new / "stranger.json").write_text("{}")
    refused(new, old, caplog)
    (new / "stranger.json").unlink()
    assert find_latest(root_of(finished)) == new
    figures("F5", f"{count + 1} of {count + 1} missing, extra and swapped files found")


@pytest.mark.parametrize("flips", later(1000))
def test_any_flipped_bit(flips, finished, figures):
    new, _ = two(finished)
    draw = random.Random(0)
    names = sorted(os.listdir(new))
    for number in range(flips):
        file = new / names[number % len(names)]
        whole = file.read_bytes()
        changed = bytearray(whole)
        changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(CheckpointError):
            read_checkpoint(new)
        file.write_bytes(whole)
    figures("F6", f"{flips} of {flips} single-bit flips found")


def test_a_run_goes_on_from_the_one_before(undisturbed, finished):
    """Through the command: one warning, and the same bits in the end."""
    new, old = two(finished)
    (new / "model.safetensors").write_bytes(b"")
    status, said = run(
        harness.command, *harness.train(finished), output=finished / "output"
    )
    assert status == 0
    lines = {x.split(" - ", 1)[1] for x in said.splitlines() if "passed over" in x}
    (line,) = lines
    assert "model.safetensors" in line
    assert new.name in line
    assert f"iter: {int(old.name[5:])} from " in said
    assert harness.fingerprint(harness.newest(root_of(finished))) == (
        harness.fingerprint(harness.newest(root_of(undisturbed())))
    )


def test_all_of_them_bad_is_status_3_and_nothing_is_deleted(finished, figures):
    for path in root_of(finished).glob("step-*"):
        (path / "trainer.json").write_bytes(b"{")
    before = sorted(map(str, root_of(finished).rglob("*")))
    status, said = run(
        harness.command, *harness.train(finished), output=finished / "output"
    )
    assert status == 3
    (line,) = [x for x in said.splitlines() if x.startswith("devrun: error")]
    for path in root_of(finished).glob("step-*"):
        assert path.name in line
    assert sorted(map(str, root_of(finished).rglob("*"))) == before
    figures("F7", "status 3, each named with its reason, nothing deleted")
