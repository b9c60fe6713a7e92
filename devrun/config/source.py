"""Reading a configuration file: regular files of sane size, in UTF-8, and no other."""

from __future__ import annotations

import os
import stat

from devrun.config.origin import config_error
from devrun.errors import ConfigError
from devrun.place import Origin

LIMITS = {".py": 256 * 1024, ".json": 1 << 20, ".yaml": 1 << 20, ".yml": 1 << 20}
"""Accepted extensions and the bytes a file of each may have."""


class MissingFileError(ConfigError, FileNotFoundError):
    """No such configuration file."""


def extension(path: str) -> str:
    suffix = os.path.splitext(path)[1]
    if suffix not in LIMITS:
        given = f"{suffix!r}" if suffix else "no extension"
        raise config_error(
            f"a configuration is a .py, .json, .yaml or .yml file, not {given}",
            Origin(path),
        )
    return suffix


def read_text(path: str) -> str:
    """The text of the file at `path`, without a byte order mark.

    Raises:
        MissingFileError: nothing is there.
        ConfigError: not a regular file, not readable, too large, not UTF-8.
    """
    limit = LIMITS[extension(path)]
    data = _read_bytes(path, limit)
    if len(data) > limit:
        raise config_error(
            f"larger than {limit // 1024} KiB; a configuration names data, "
            "it does not hold it",
            Origin(path),
        )
    check_bytes(data, path)
    return data.decode("utf-8-sig")


def check_bytes(data: bytes, path: str) -> None:
    nul = data.find(b"\0")
    if nul >= 0:
        line = data.count(b"\n", 0, nul) + 1
        raise config_error(
            "a NUL byte; this is not a text file, save it as UTF-8", Origin(path, line)
        )
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise config_error(
            f"not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8",
            Origin(path, line),
        ) from None


def _read_bytes(path: str, limit: int) -> bytes:
    here = Origin(path)
    try:
        # O_NONBLOCK: opening a pipe nobody writes to must not wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        text = f"{here}: no such configuration file; check the path"
        raise MissingFileError(text) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise config_error(f"cannot be read: {reason}", here) from None
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "a pipe, socket or device"
            raise config_error(f"{kind}, not a configuration file", here)
        chunks: list[bytes] = []
        left = limit + 1
        while left > 0 and (chunk := os.read(fd, left)):
            chunks.append(chunk)
            left -= len(chunk)
    except OSError as error:
        raise config_error(f"cannot be read: {error.strerror}", here) from None
    finally:
        os.close(fd)
    return b"".join(chunks)
