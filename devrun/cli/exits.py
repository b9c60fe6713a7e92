"""How a command ends: one line on stderr and a status that scripts can act on."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devrun.cli.console import complain, one_line
from devrun.cli.signals import StartInterrupted
from devrun.errors import (
    DevrunError,
    RunInterrupted,
    StorageError,
    is_out_of_memory,
)

__all__ = ["STATUSES", "Session", "guarded", "status_of"]

STATUSES = {
    "0": "done",
    "1": "a defect: the traceback is in the log file",
    "2": "usage or config",
    "3": "checkpoint unusable or refused",
    "4": "data",
    "5": "diverged or not finite",
    "6": "out of memory",
    "7": "hang, or another process of the run was lost",
    "8": "disk or I/O",
    "9": "device or SDK not here",
    "75": "stopped by a signal and saved: start it again",
    "130, 143": "interrupted without saving (130 also when Ctrl-C saved)",
}

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
FORBIDDEN = (errno.EACCES, errno.EPERM)
BROKEN_PIPE = 128 + 13  # what a shell reports of a program that SIGPIPE ended


@dataclass
class Session:
    """What a command tells the exit machinery about itself while it runs."""

    argv: Sequence[str]
    work_dir: Path | None = None
    log_file: Path | None = None
    on_failure: list[Callable[[int, str], None]] = field(default_factory=list)
    """Called with status and message before the process ends by an error."""


def guarded(run: Callable[[Session], int], argv: Sequence[str]) -> int:
    """`run(session)`'s status; an error becomes its one line and its status."""
    session = Session(argv)
    try:
        return run(session)
    except BrokenPipeError:
        # The reader has gone; nothing can be said, also not by the flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except StartInterrupted as stop:
        return _fail(session, stop.exit_code, str(stop), "interrupted")
    except KeyboardInterrupt:
        return _fail(session, 130, "by Ctrl-C", "interrupted")
    except RunInterrupted as stop:
        return _fail(session, stop.exit_code, str(stop), "interrupted")
    except DevrunError as error:
        return _fail(session, error.exit_code, str(error))
    except Exception as error:  # noqa: BLE001 - the last resort: logged and reported
        return _unexpected(session, error)


def status_of(error: BaseException, work_dir: Path | None = None) -> int:
    """The status for an error that is not devrun's own.

    `work_dir` tells a file of the run, whose refusal is a disk problem, from others.
    """
    if is_out_of_memory(error):
        return 6
    if isinstance(error, OSError) and not isinstance(error, StorageError):
        if error.errno in DISK_FULL:
            return 8
        if error.errno in FORBIDDEN and _inside(error.filename, work_dir):
            return 8
    return 1


def _unexpected(session: Session, error: Exception) -> int:
    status = status_of(error, session.work_dir)
    what = f"{type(error).__name__}: {error}"
    if status == 8:
        return _fail(session, status, f"{what}; free the disk or change --work-dir")
    if status == 6:
        what = f"out of memory: {what}; use a smaller batch, or cumulative_iters"
    where = _write_traceback(session, error)
    return _fail(session, status, f"{what} (traceback: {where})")


def _fail(session: Session, status: int, message: str, kind: str = "error") -> int:
    for callback in session.on_failure:
        try:
            callback(status, one_line(message))
        except OSError as error:  # the disk is full: the message matters more
            complain(f"could not record the failure: {error}", "warning")
    complain(message, kind)
    return status


def _write_traceback(session: Session, error: Exception) -> Path:
    """Append the traceback to the log file, or to a new one where that cannot be."""
    text = "".join(traceback.format_exception(error))
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    entry = f"{stamp} - devrun - ERROR - {' '.join(session.argv)}\n{text}"
    if session.log_file is not None:
        try:
            _append(session.log_file, entry)
        except OSError as reason:  # a full disk must not hide what went wrong
            complain(f"cannot write {session.log_file}: {reason.strerror}", "warning")
        else:
            return session.log_file
    descriptor, name = tempfile.mkstemp(prefix="devrun-", suffix=".log")
    os.close(descriptor)
    _append(Path(name), entry)
    return Path(name)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _inside(filename: object, work_dir: Path | None) -> bool:
    if work_dir is None or not isinstance(filename, (str, os.PathLike)):
        return False
    return Path(filename).absolute().is_relative_to(work_dir.absolute())
