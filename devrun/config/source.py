"""Reading a configuration file: regular files of sane size, in UTF-8, and no other."""

from __future__ import annotations

import os

from devrun.config.origin import config_error
from devrun.errors import ConfigError
from devrun.files import open_regular
from devrun.place import Origin, Place

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
    limit, here = LIMITS[extension(path)], Origin(path)
    try:
        with open_regular(path) as stream:
            data = stream.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        reason = "no such configuration file; check the path"
        raise MissingFileError(reason, place=Place(here)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise config_error(f"cannot be read: {reason}", here) from None
    if len(data) > limit:
        raise config_error(
            f"larger than {limit // 1024} KiB; a configuration names data, "
            "it does not hold it",
            here,
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = f"not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        raise config_error(reason, Origin(path, line)) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise config_error("a NUL byte; save it as UTF-8", Origin(path, line))
    return text
