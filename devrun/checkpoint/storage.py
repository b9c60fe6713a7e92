"""Writing that is whole or not there, and what was left half done."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from devrun.checkpoint import fileops
from devrun.checkpoint.names import FILE, MANIFEST, temporary
from devrun.files import disk_errors


def write_file(
    path: Path,
    data: Iterable[bytes | bytearray | memoryview] | Callable[[int], None],
) -> None:
    """Replace the file at `path` atomically and durably.

    `data` is an iterable of bytes, or a function that writes to a descriptor.
    """
    temp = path.with_name(temporary("tmp", path.name))
    fd = fileops.create(temp)
    try:
        if callable(data):
            data(fd)
        else:
            for piece in data:
                fileops.write(fd, piece)
        fileops.sync(fd)
        fileops.rename(temp, path)
    except BaseException:
        with suppress(OSError):
            fileops.unlink(temp)
        raise
    finally:
        os.close(fd)
    fileops.sync_directory(path.parent)


def check_writable(root: str | os.PathLike[str]) -> None:
    """Make the directory `root`, in which something will be written much later.

    Raises:
        StorageError: it cannot be made, or nothing can be written in it.
    """
    with disk_errors(f"cannot write in {os.fspath(root)!r}"):
        make_durable(Path(root))
        with tempfile.TemporaryFile(dir=root):
            pass


def check_possible(root: str | os.PathLike[str]) -> None:
    """As `check_writable`, as far as is possible without writing anything.

    Raises:
        StorageError: no directory can be made there, or nothing be written in it.
    """
    with disk_errors(f"cannot write in {os.fspath(root)!r}"):
        place = Path(root).absolute()
        while not os.path.lexists(place):
            place = place.parent
        for refused, code in (
            (not place.is_dir(), errno.ENOTDIR),
            (not os.access(place, os.W_OK | os.X_OK), errno.EACCES),
        ):
            if refused:
                raise OSError(code, os.strerror(code))


def make_durable(root: Path) -> None:
    """Make `root`; a new directory is durable once its parent is synced.

    So do those above it: whoever made them, a moment ago perhaps, has not. One that
    this user may not read was there before.
    """
    if root.is_dir():
        return
    parent, *above = root.absolute().parents
    make_durable(parent)
    with suppress(FileExistsError):
        fileops.make_directory(root)
    fileops.sync_directory(parent)
    for directory in above:
        with suppress(PermissionError):
            fileops.sync_directory(directory)


def clear_directory(path: Path) -> None:
    """Delete a directory of plain checkpoint files; anything else in it stays.

    Raises:
        OSError: something else is in it, or the disk refuses.
    """
    entries = sorted(os.listdir(path))
    for entry in entries:
        ours = entry == MANIFEST or FILE.fullmatch(entry)
        if not ours or fileops.file_type(path / entry) != "file":
            raise OSError(errno.ENOTEMPTY, f"{path.name} holds {entry!r}, not ours")
    for entry in entries:
        fileops.unlink(path / entry)
    fileops.remove_directory(path)
