"""Files that are whole or as they were, and files whose folders others prepared."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from devrun.errors import ConfigError, DataError, DevrunError, StorageError
from devrun.python38 import unsuffixed

SMALL = 1 << 20
"""Bytes that a JSON file with the facts of a run may have."""


def unfollowed(path: str, flags: int) -> int:
    """An `opener` of `open` for the files of a run: it follows no link.

    Whoever prepared a work_dir may have put a link there, or a pipe that waits for
    ever. What is written must also have no other name elsewhere.

    Raises:
        OSError: something else than such a file stands there.
    """
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    in_the_way = OSError(errno.ELOOP, "a link, or no regular file, stands there", path)
    try:
        fd = os.open(path, flags & ~os.O_TRUNC | safe, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise in_the_way from None
        raise
    try:
        status, reads = os.fstat(fd), flags & os.O_ACCMODE == os.O_RDONLY
        if not stat.S_ISREG(status.st_mode) or (status.st_nlink > 1 and not reads):
            raise in_the_way
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_json(path: str | os.PathLike[str], limit: int = SMALL) -> Any:
    """What a small JSON file of a run holds.

    Raises:
        OSError: a link, no regular file, or not readable.
        ValueError: more than `limit` bytes, no JSON, or nested too deeply.
    """
    with open(path, "rb", opener=unfollowed) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"more than {limit} bytes")
    return parse_json(data)


def parse_json(data: bytes) -> Any:
    """The value of JSON that anybody may have written.

    Raises:
        ValueError: no JSON, or nested too deeply.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_line(value: Any) -> bytes:
    """`value` as JSON on one line, keys in the order they have."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def own_folder(work_dir: str | os.PathLike[str], name: str) -> Path:
    """The folder `name` of a run in its work_dir, which may not be there yet.

    Raises:
        ConfigError: a link stands there, which could lead anywhere.
    """
    place = Path(work_dir) / name
    if place.is_symlink():
        raise ConfigError(
            f"{str(place)!r} is a link, which devrun does not follow: remove it, or "
            "name the folder that it leads to in the config (out_dir, log_dir)"
        )
    return place


def replace_text(
    path: str | os.PathLike[str], text: str, *, follow: bool = True
) -> None:
    """`replace_file` with `text` in UTF-8."""
    replace_file(path, text.encode("utf-8"), follow=follow)


def replace_file(
    path: str | os.PathLike[str], content: bytes, *, follow: bool = True
) -> None:
    """Put `content` in the place of what the file holds, or change nothing.

    It is written beside the file and renamed. With `follow`, for a path that the user
    named, a link stays one, and what is no regular file, such as `/dev/stdout`, is
    written as it is; else the new file takes the place of either.

    Raises:
        OSError: the disk refused; the file is as it was.
    """
    path = os.path.realpath(path) if follow else os.fspath(path)
    if follow and os.path.exists(path) and not os.path.isfile(path):
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


def checkpoints_near(path: Path) -> list[str]:
    """What could have been meant by the path of a checkpoint that is not there: those
    in its folder, and in the `checkpoints` of that."""
    found = [
        str(entry)
        for folder in (path.parent, path.parent / "checkpoints")
        for pattern in ("*/MANIFEST.json", "*.pth", "*.safetensors")
        for entry in folder.glob(pattern)
    ]
    return [unsuffixed(name, "/MANIFEST.json") for name in found]


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


_ADVICE = {
    errno.ENOSPC: "; free some space or choose another directory",
    errno.EFBIG: "; the file size limit (ulimit -f) is too small",
    errno.EROFS: "; the file system is read-only: choose another directory",
    errno.EACCES: "; make the directory writable or choose another",
    errno.ENOENT: "; is there such a directory, and still?",
    errno.ENOTDIR: "; a file is in the way: choose another directory",
}


@contextmanager
def disk_errors(what: str, advice: str = "") -> Iterator[None]:
    """Within, what the disk refuses is one line: `what: REASON`, and the advice.

    Raises:
        StorageError: in place of an OSError.
    """
    try:
        yield
    except DevrunError:
        raise
    except OSError as error:
        advice = advice or _ADVICE.get(error.errno or 0, "")
        found = StorageError(f"{what}: {error.strerror or error}{advice}")
        found.errno = error.errno
        raise found from error
