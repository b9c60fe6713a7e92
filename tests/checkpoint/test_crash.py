"""Killed, or refused by the disk, at any file operation: nothing good is lost."""

import errno
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch

from devrun.checkpoint import (
    fileops,
    find_latest,
    remove_checkpoint,
    step_name,
    sweep_leftovers,
    write_checkpoint,
)
from devrun.checkpoint.pickled import load_pickled, save_pickled
from devrun.errors import StorageError
from tests import failpoints


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def put(root):
    """Writes as small a checkpoint as there is; its path."""

    def write(step, value=0.0):
        parts = {"model": {"0.weight": torch.full((3,), float(value))}}
        return write_checkpoint(root, step_name(step), parts, {"step": step})

    return write


def until_it_survives(in_child, function, action, prepare, check):
    """Run `function` with a failure at operation 1, 2, ... until none is left."""
    for nth in range(1, 200):
        prepare()
        status = in_child(function, failpoint=f"any:{nth}:{action}")
        check(status)
        if status == 0:
            return nth - 1
    raise AssertionError("it never ran to its end")


def test_killed_at_any_operation_of_a_pth_file(tmp_path, in_child, killed):
    path = tmp_path / "epoch_1.pth"

    def check(status):
        assert status in (0, killed)
        expected = (1, 2) if status == killed else (2,)
        assert load_pickled(path)["n"] in expected
        sweep_leftovers(tmp_path)
        assert os.listdir(tmp_path) == [path.name]

    until_it_survives(
        in_child,
        lambda: save_pickled({"n": 2}, path),
        "kill",
        lambda: save_pickled({"n": 1}, path),
        check,
    )


@pytest.mark.parametrize("code", ["ENOSPC", "EIO"])
def test_an_error_at_any_operation_leaves_all_as_it_was(
    put, root, monkeypatch, caplog, code
):
    put(1)
    for nth in range(1, 200):
        shutil.rmtree(root / step_name(2), ignore_errors=True)
        caplog.clear()
        failpoints.arm(f"any:{nth}:{code}", monkeypatch.setattr)
        try:
            put(2)
            refused = False
        except StorageError as error:
            assert "\n" not in str(error)
            assert error.errno == getattr(errno, code)
            refused = True
        published = (root / step_name(2)).exists()  # perhaps only its fsync failed
        assert find_latest(root).name == step_name(2 if published else 1)
        assert {name for name in os.listdir(root) if name.startswith(".")} == set()
        if not refused and not caplog.records:  # nothing failed: past the last one
            assert nth > 15
            return
    raise AssertionError("it failed again and again")


def test_a_file_size_limit_is_a_clear_error(save, tmp_path, in_child):
    root = tmp_path / "checkpoints"
    save(1)

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        big = {"model": {"w": torch.zeros(100_000)}}
        try:
            write_checkpoint(root, step_name(2), big, {"step": 2})
        except StorageError as error:
            assert "ulimit -f" in str(error)

    assert in_child(limited) == 0
    assert sorted(os.listdir(root)) == ["latest.json", step_name(1)]


def test_sweeping_touches_nothing_else(save, tmp_path):
    root = tmp_path / "checkpoints"
    save(1)
    for name in (".tmp-mine", ".hidden", "notes", ".del-x-12"):
        (root / name).mkdir()
    stranger = root / ".tmp-x-0123456789ab"
    stranger.mkdir()
    (stranger / "My File").write_text("keep")
    assert sweep_leftovers(root) == []
    assert (stranger / "My File").read_text() == "keep"
    assert len(os.listdir(root)) == 7


def test_removal_refuses_what_is_no_checkpoint(save, tmp_path):
    from devrun.errors import CheckpointError

    path = save(1)
    (tmp_path / "mine").mkdir()
    for other in (tmp_path / "mine", tmp_path / "absent", path / "model.json"):
        with pytest.raises(CheckpointError):
            remove_checkpoint(other)
    link = tmp_path / "checkpoints" / "link"
    link.symlink_to(path)
    with pytest.raises(CheckpointError, match="is a link"):
        remove_checkpoint(link)
    (path / "My File").write_text("keep")
    with pytest.raises(CheckpointError, match="does not belong"):
        remove_checkpoint(path)
    (path / "My File").unlink()
    remove_checkpoint(path)
    assert not path.exists()


def test_a_file_system_without_sync_of_directories_is_no_error():
    fd = os.open("/proc", os.O_RDONLY)  # one of these
    with pytest.raises(OSError, match="Invalid argument"):
        os.fsync(fd)
    os.close(fd)
    fileops.sync_directory(Path("/proc"))
