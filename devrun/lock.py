"""`run.lock`: no two runs write in one directory.

A lock of the kernel, by process: it ends with the process, however that ends, so the
file may stay behind and is no obstacle. Data workers do not inherit it. Over NFS it
holds where the server has locking, as NFS version 4 always does. Between the runs of
one process, an owner of each tells them apart.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from devrun.errors import ConfigError
from devrun.files import open_regular, parse_json, unfollowed

LOCK = "run.lock"
LOST = "ended without a word: killed, crashed or out of memory"
"""What is said of a run that no process holds, and that has not said how it ended."""
_FLOCK = "hhqqi4x"
"""`struct flock` of Linux: type, whence, start, length, process."""


@dataclass
class _Lock:
    """One descriptor for each directory: closing any other of the same file would
    free the lock of this process."""

    pid: int
    fd: int
    owners: list[object] = field(default_factory=list)


_held: dict[Path, _Lock] = {}
_threads = threading.Lock()


def lock_directory(
    directory: str | os.PathLike[str], owner: object | None = None
) -> None:
    """Claim the directory, which exists, until it is unlocked as often as locked.

    Args:
        owner: the run that writes in it, such as a runner; it may claim it again.
            None claims it for a run of this process that does not exist yet: the
            first that comes takes it over.

    Raises:
        ConfigError: another run has it; names its process.
        OSError: the file cannot be made, or a link stands there.
    """
    place = Path(directory).resolve()
    with _threads:
        lock = _held.get(place)
        if lock is None or lock.pid != os.getpid():
            lock = _held[place] = _Lock(os.getpid(), _locked(place, directory))
        elif owner is None or any(o not in (None, owner) for o in lock.owners):
            raise _in_use(directory, " of this process")
        lock.owners.append(owner)


def may_run(directory: str | os.PathLike[str]) -> bool:
    """Whether a run has the directory, or may have it on another machine.

    The lock is asked for and not tried: a run that begins now finds it free.
    """
    place = Path(directory).resolve()
    if place in _held:
        return True  # whose lock would end with another descriptor
    try:
        with open_regular(place / LOCK) as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
            found = fcntl.fcntl(file.fileno(), fcntl.F_GETLK, asked)
            host = parse_json(file.read(4096))["host"]
    except (OSError, ValueError, TypeError, KeyError):
        return True
    free: bool = struct.unpack(_FLOCK, found)[0] == fcntl.F_UNLCK
    return not free or host != socket.gethostname()


def unlock_directory(
    directory: str | os.PathLike[str], owner: object | None = None
) -> None:
    """Let others have it; nothing happens where `owner` does not hold it."""
    place = Path(directory).resolve()
    with _threads:
        lock = _held.get(place)
        if lock is None or lock.pid != os.getpid() or owner not in lock.owners:
            return
        lock.owners.remove(owner)
        if not lock.owners:
            del _held[place]
            os.close(lock.fd)


def _locked(place: Path, directory: str | os.PathLike[str]) -> int:
    """A descriptor with the lock of the kernel."""
    fd = unfollowed(str(place / LOCK), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(fd)
        os.close(fd)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise _in_use(directory, holder) from error
    facts = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    with suppress(OSError):  # a full disk: the lock holds, its file says nothing
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(facts).encode() + b"\n", 0)
    return fd


def _in_use(directory: str | os.PathLike[str], holder: str) -> ConfigError:
    return ConfigError(
        f"{str(directory)!r} is in use by another run{holder}: wait for it, stop it, "
        "or choose another work_dir"
    )


def _holder(fd: int) -> str:
    """The owner of the lock according to the file."""
    try:
        facts = parse_json(os.pread(fd, 4096, 0))
        return f", pid {int(facts['pid'])} on {str(facts['host'])[:64]!r}"
    except (OSError, ValueError, TypeError, KeyError):
        return ""
