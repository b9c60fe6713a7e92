"""`run.lock`: no two runs write in one directory.

A lock of the kernel, by process: it ends with the process, however that ends, so the
file may stay behind and is no obstacle. Data workers do not inherit it. Over NFS it
holds where the server has locking, as NFS version 4 always does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from devrun.errors import ConfigError

__all__ = ["LOCK", "lock_directory", "unlock_directory"]

LOCK = "run.lock"


@dataclass
class _Lock:
    """One descriptor for each directory: closing any other of the same file would
    free the lock of this process."""

    pid: int
    fd: int
    holders: int = 1


_held: dict[Path, _Lock] = {}


def lock_directory(directory: str | os.PathLike[str]) -> None:
    """Claim the directory, which exists, for this process, until it is unlocked as
    often as it was locked.

    Raises:
        ConfigError: another process has it; says which one.
        OSError: the file cannot be made.
    """
    place = Path(directory).resolve()
    lock = _held.get(place)
    if lock is not None and lock.pid == os.getpid():
        lock.holders += 1
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(place / LOCK, flags, 0o666)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(fd)
        os.close(fd)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise ConfigError(
            f"{str(directory)!r} is in use by another run{holder}: wait for it, stop "
            "it, or choose another work_dir"
        ) from error
    facts = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(facts).encode() + b"\n", 0)
    _held[place] = _Lock(os.getpid(), fd)


def unlock_directory(directory: str | os.PathLike[str]) -> None:
    """Let others have it; nothing happens where this process does not hold it."""
    place = Path(directory).resolve()
    lock = _held.get(place)
    if lock is None or lock.pid != os.getpid():
        return
    lock.holders -= 1
    if not lock.holders:
        del _held[place]
        os.close(lock.fd)


def _holder(fd: int) -> str:
    """Who has the lock, as far as the file tells."""
    try:
        facts = json.loads(os.pread(fd, 4096, 0))
        return f", pid {int(facts['pid'])} on {str(facts['host'])[:64]!r}"
    except (OSError, ValueError, TypeError, KeyError):
        return ""
