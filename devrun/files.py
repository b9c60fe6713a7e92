"""Files that are whole or as they were, and files that have an end."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from devrun.errors import ConfigError, DataError, StorageError


def replace_text(path: str | os.PathLike[str], text: str) -> None:
    """`replace_file` with `text` in UTF-8."""
    replace_file(path, text.encode("utf-8"))


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Put `content` in the place of what the file holds, or change nothing.

    It is written beside the file and renamed. A link stays one; what is no regular
    file, such as `/dev/stdout`, is written as it is.

    Raises:
        OSError: the disk refused; the file is as it was.
    """
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as stream:
            stream.write(content)
        return
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(aside, "xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """`path` open for reading, if it has an end and nobody has to wait for it.

    Raises:
        OSError: it is a folder, a pipe or a device, or cannot be opened.
    """
    at_once = getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer would wait
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | at_once)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
    return os.fdopen(descriptor, "rb")


def regular_bytes(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """What a file of data holds, or its first `most` bytes; no more than its size.

    Raises:
        DataError: it is no regular file, or cannot be read.
    """
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            return stream.read(size if most is None else min(size, most))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def check_regular(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Refuse what another package would wait for, or read without end.

    Raises:
        DataError: one is no regular file, or cannot be read.
    """
    for path in paths:
        regular_bytes(path, 0)


def user_path(path: str | os.PathLike[str]) -> Path:
    """`path` with the home directory in the place of its `~`.

    Raises:
        ConfigError: there is no such home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{os.fspath(path)!r} begins in a home directory that is not known here; "
            "write it out"
        ) from None


@contextmanager
def disk_errors(what: str, advice: str = "") -> Iterator[None]:
    """Within, what the disk refuses is one line: `what: REASON`, and the advice.

    Raises:
        StorageError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what}: {error.strerror or error}{advice}") from error
