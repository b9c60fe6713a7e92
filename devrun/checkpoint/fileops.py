"""Every file operation of a checkpoint write, each one a point where it may fail.

Everything works relative to an open directory, so that a name can never lead out of
it and a directory that is renamed meanwhile stays the same directory. Names are
plain file names; a symlink, a FIFO or a device in place of a file is refused.

Callers reach every function through this module, `fileops.rename(...)`, so that a
test can make any one of them fail.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK = 1 << 24
_NO_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_RESERVATION = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV}


@contextmanager
def directory(path: Path) -> Iterator[int]:
    """Descriptor of the directory that the caller named."""
    fd = os.open(path, _DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def subdirectory(name: str, parent: int) -> Iterator[int]:
    """Descriptor of a directory in `parent`; a symlink is refused."""
    fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def make_directory(name: str | Path, parent: int | None = None) -> None:
    """Make a directory that does not exist yet."""
    os.mkdir(name, dir_fd=parent)


def create(name: str, parent: int) -> int:
    """Descriptor of a new file, mode by umask; one that exists is an error."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o666, dir_fd=parent)


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


def rename(old: str, new: str, parent: int) -> None:
    """Rename inside `parent`, atomically."""
    os.rename(old, new, src_dir_fd=parent, dst_dir_fd=parent)


def unlink(name: str, parent: int) -> None:
    """Remove a file; of a symlink, the link."""
    os.unlink(name, dir_fd=parent)


def remove_directory(name: str, parent: int) -> None:
    """Remove an empty directory."""
    os.rmdir(name, dir_fd=parent)


def names(fd: int) -> list[str]:
    """Entries of a directory, sorted."""
    return sorted(os.listdir(fd))


def file_type(name: str, parent: int) -> str | None:
    """`file`, `directory`, `other` (links too), or None where there is nothing."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "other"


def read_file(
    name: str, parent: int, size: int | None = None, *, limit: int | None = None
) -> bytes:
    """All bytes of a regular file of at most `limit` bytes, exactly `size` if given.

    Raises:
        OSError: not a regular file, another size, too large, or unreadable.
    """
    with _regular(name, parent, size) as (file, found):
        if limit is not None and found > limit:
            raise OSError(errno.EFBIG, f"{found} bytes, more than {limit}")
        data = file.readall()
    if len(data) != found:
        raise OSError(errno.EIO, f"{len(data)} bytes read of {found}")
    return data


def digest(name: str, parent: int, size: int) -> str:
    """sha256, in hex, of a regular file of `size` bytes, read in pieces.

    Raises:
        OSError: not a regular file, another size, or unreadable.
    """
    sha256, total = hashlib.sha256(), 0
    buffer = memoryview(bytearray(min(size, _CHUNK) or 1))
    with _regular(name, parent, size) as (file, _):
        while count := file.readinto(buffer):
            sha256.update(buffer[:count])
            total += count
    if total != size:
        raise OSError(errno.EIO, f"{total} bytes read of {size}")
    return sha256.hexdigest()


@contextmanager
def _regular(
    name: str, parent: int, size: int | None
) -> Iterator[tuple[io.FileIO, int]]:
    """A regular file, open for reading, and its size."""
    if file_type(name, parent) == "other":
        raise OSError(errno.EINVAL, "not a regular file")
    # A FIFO swapped in meanwhile must not block, and what was opened is what counts.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with io.FileIO(os.open(name, flags, dir_fd=parent), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if size is not None and status.st_size != size:
            raise OSError(errno.EINVAL, f"{status.st_size} bytes instead of {size}")
        yield file, status.st_size
