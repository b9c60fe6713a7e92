import errno
import os

import pytest

from devrun import errors
from devrun.cli.exits import guarded, status_of


def ending(capsys, error, **session):
    """Status and stderr of a command that raises `error`."""

    def run(found):
        for name, value in session.items():
            setattr(found, name, value)
        raise error

    status = guarded(run, ["train", "x.yaml"])
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ConfigError("wrong key"), 2),
        (errors.UnsupportedFeatureError("not on this device"), 2),
        (errors.CheckpointError("damaged"), 3),
        (errors.DataError("sample 3"), 4),
        (errors.DivergedError("loss is NaN"), 5),
        (errors.DeviceMemoryError("too big"), 6),
        (errors.HangError("no step for 600 s"), 7),
        (errors.StorageError("disk full"), 8),
        (errors.DeviceUnavailableError("no CUDA"), 9),
    ],
)
def test_each_error_has_its_status_and_one_line(capsys, error, status):
    found, text = ending(capsys, error)
    assert found == status
    assert text == f"devrun: error: {error}\n"


@pytest.mark.parametrize("session", [{}, {"log_file": "."}])
def test_a_defect_whose_log_file_is_not_there_or_cannot_be_written_leaves_another(
    capsys, tmp_path, monkeypatch, session
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status, text = ending(capsys, ZeroDivisionError("oops"), **session)
    assert status == 1
    assert "ZeroDivisionError: oops" in text
    assert str(tmp_path) in text
    assert "Traceback (most recent call last)" not in text
    (found,) = tmp_path.glob("devrun-*.log")
    assert "Traceback (most recent call last)" in found.read_text()


def test_memory_that_ran_out_has_its_own_status():
    import torch

    kind = getattr(torch, "OutOfMemoryError", MemoryError)
    assert status_of(kind("CUDA out of memory")) == 6
    assert status_of(MemoryError()) == 6


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_or_read_only_disk_is_status_8(number):
    assert status_of(OSError(number, os.strerror(number))) == 8


def test_a_forbidden_file_is_a_disk_problem_only_in_the_work_dir(tmp_path):
    mine = PermissionError(errno.EACCES, "denied", str(tmp_path / "x"))
    other = PermissionError(errno.EACCES, "denied", "/data/x")
    assert status_of(mine, tmp_path) == 8
    assert status_of(other, tmp_path) == 1


def test_ctrl_c_outside_a_run_is_130(capsys):
    status, text = ending(capsys, KeyboardInterrupt())
    assert status == 130
    assert text == "devrun: interrupted: by Ctrl-C\n"
