"""Every file operation of a checkpoint write, each one a point where it may fail.

A symlink, a FIFO or a device in place of a file is refused.

Callers reach every function through this module, `fileops.rename(...)`, so that a
test can make any one of them fail.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

from devrun.files import unfollowed

_CHUNK = 1 << 24
_NO_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_RESERVATION = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV}


def make_directory(path: Path) -> None:
    """Make a directory that does not exist yet."""
    os.mkdir(path)


def create(path: Path) -> int:
    """Descriptor of a new file, mode by umask; one that exists is an error."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


def reserve(fd: int, size: int) -> None:
    """Claim `size` bytes, so that a full disk shows before anything is written."""
    if size == 0 or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in _NO_RESERVATION:  # this file system cannot reserve
            raise


def write(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of `data`."""
    view = memoryview(data).cast("B")
    position = 0
    while position < len(view):
        position += os.write(fd, view[position : position + _CHUNK])


def sync(fd: int) -> None:
    """Return when a file's content, or a directory's entries, are on the disk."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC or not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise  # else this file system knows of no sync of a directory


def sync_directory(path: Path) -> None:
    """Return when the entries of a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def rename(old: Path, new: Path) -> None:
    """Rename atomically, on one file system."""
    os.rename(old, new)


def unlink(path: Path) -> None:
    """Remove a file; of a symlink, the link."""
    os.unlink(path)


def remove_directory(path: Path) -> None:
    """Remove an empty directory."""
    os.rmdir(path)


def file_type(path: Path) -> str | None:
    """`file`, `directory`, `other` (links too), or None where there is nothing."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "other"


def read_file(
    path: Path, size: int | None = None, *, limit: int | None = None
) -> bytes:
    """All bytes of a regular file of at most `limit` bytes, exactly `size` if given.

    Raises:
        OSError: not a regular file, another size, too large, or unreadable.
    """
    with open(path, "rb", opener=unfollowed) as file:
        found = os.fstat(file.fileno()).st_size
        if limit is not None and found > limit:
            raise OSError(errno.EFBIG, f"{found} bytes, more than {limit}")
        if size is not None and found != size:
            raise OSError(errno.EINVAL, f"{found} bytes instead of {size}")
        return file.read(found)


def digest(path: Path, size: int) -> str:
    """sha256, in hex, of a regular file of `size` bytes, read in pieces.

    Raises:
        OSError: not a regular file, another size, or unreadable.
    """
    sha256, total = hashlib.sha256(), 0
    buffer = memoryview(bytearray(min(size, _CHUNK) or 1))
    with open(path, "rb", buffering=0, opener=unfollowed) as file:
        while count := file.readinto(buffer):
            sha256.update(buffer[:count])
            total += count
    if total != size:
        raise OSError(errno.EIO, f"{total} bytes read of {size}")
    return sha256.hexdigest()
