"""How a command ends: one line on stderr and a status that scripts can act on."""

from __future__ import annotations

import errno
import logging
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from devrun.blame import cause_of, users_line
from devrun.cli.console import complain
from devrun.cli.summary import masked
from devrun.errors import (
    DevrunError,
    RunInterrupted,
    StorageError,
    is_out_of_memory,
)
from devrun.files import unfollowed
from devrun.launched import tell_launcher
from devrun.peers import LostPeerError, lost_peer
from devrun.text import escape_lines, one_line

STATUSES = {
    "0": "done",
    "1": "a defect, or a `sys.exit` in the run: the traceback is in the log",
    "2": "usage or config",
    "3": "checkpoint unusable or refused",
    "4": "data: missing, empty or damaged",
    "5": "diverged or not finite",
    "6": "out of memory",
    "7": "hang, or another process of the run was lost",
    "8": "disk or I/O",
    "9": "device or SDK not here",
    "10": "`compare`: the trainings part",
    "11": "`check`: something breaks, or is as bad as --fail-on says; a failed "
    "`devices --conformance`",
    "75": "stopped by a signal or max_time, and saved: start it again",
    "130, 143": "interrupted without saving (130 also when Ctrl-C saved)",
    "141": "what read the output closed it, as `| head` does",
}

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
FORBIDDEN = (errno.EACCES, errno.EPERM)
BROKEN_PIPE = 128 + 13  # what a shell reports of a program that SIGPIPE ended


@dataclass
class Session:
    """What the exit code needs to know about a running command."""

    argv: Sequence[str]
    work_dir: Path | None = None
    log_file: Path | None = None
    parsed: bool = False
    """Whether the command is at work: `--help` and wrong flags end it before."""
    cleanup: ExitStack = field(default_factory=ExitStack)
    """Closed when the command has ended, however that was."""
    on_failure: list[Callable[[int, str], None]] = field(default_factory=list)
    """Called with status and message before the process ends by an error."""


def guarded(run: Callable[[Session], int], argv: Sequence[str]) -> int:
    """`run(session)`'s status; an error becomes its one line and its status."""
    session = Session(argv)
    _log_warnings(session)
    try:
        return run(session)
    except BrokenPipeError:
        # The reader has gone; nothing can be said, also not by the flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except RunInterrupted as stop:
        return _fail(session, stop.exit_code, str(stop), "interrupted")
    except KeyboardInterrupt:
        return _fail(session, 130, "by Ctrl-C", "interrupted")
    except DevrunError as error:
        lost = isinstance(error, LostPeerError)
        said = str(error)
        if users_line(error.__cause__) is not None:
            said += f" (traceback: {_write_traceback(session, error)})"
        return _fail(session, error.exit_code, said, lost=lost)
    except SystemExit as stop:
        if not session.parsed:
            raise
        return _left(session, stop)
    except BaseException as error:  # noqa: BLE001 - the last resort: reported
        return _unexpected(session, error)
    finally:
        session.cleanup.close()


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


def _log_warnings(session: Session) -> None:
    """Python's warnings go the way of the log, where they are made safe to show."""
    from devrun.log.logger import close_logger, get_logger

    session.cleanup.enter_context(warnings.catch_warnings())
    get_logger("py.warnings")
    logging.captureWarnings(True)
    session.cleanup.callback(close_logger, "py.warnings")
    session.cleanup.callback(logging.captureWarnings, False)


def _left(session: Session, stop: SystemExit) -> int:
    """Code of the run has called `sys.exit`, which no restart script may take for an
    end in order, whatever the status was."""
    *_, last = traceback.extract_tb(stop.__traceback__)
    where = _write_traceback(session, stop)
    return _fail(
        session,
        1,
        f"sys.exit({'' if stop.code is None else repr(stop.code)}) was called in "
        f"{last.name} ({last.filename}:{last.lineno}) before the command was done; "
        "raise an exception there, or call runner.request_stop(reason) to end a "
        f"training in order (traceback: {where})",
    )


def _unexpected(session: Session, error: BaseException) -> int:
    if (lost := lost_peer(error)) is not None:
        return _fail(session, lost.exit_code, str(lost), lost=True)
    status = status_of(error, session.work_dir)
    what = cause_of(error)
    if status == 8:
        return _fail(session, status, f"{what}; free the disk or change --work-dir")
    if status == 6:
        what = f"out of memory: {what}; use a smaller batch, or cumulative_iters"
    where = _write_traceback(session, error)
    return _fail(session, status, f"{what} (traceback: {where})")


def _fail(
    session: Session,
    status: int,
    message: str,
    kind: str = "error",
    *,
    lost: bool = False,
) -> int:
    refusals: set[str] = set()  # each is told once
    for callback in session.on_failure:
        try:
            callback(status, one_line(message))
        except OSError as error:  # the disk is full: the message matters more
            refusals.add(str(error))
    for refusal in sorted(refusals):
        complain(f"could not record the failure: {refusal}", "warning")
    if not tell_launcher(status, one_line(message), lost=lost):
        complain(message, kind)
    return status


def _write_traceback(session: Session, error: BaseException) -> Path:
    """Append the traceback to the log file, or to a new one where that cannot be."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    command = " ".join(masked(session.argv))
    entry = escape_lines(f"{stamp} - devrun - ERROR - {command}\n{text}") + "\n"
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
    with open(path, "a", encoding="utf-8", opener=unfollowed) as file:
        file.write(text)


def _inside(filename: object, work_dir: Path | None) -> bool:
    if work_dir is None or not isinstance(filename, (str, os.PathLike)):
        return False
    return work_dir.absolute() in Path(filename).absolute().parents
