"""Files that are whole or as they were."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from devrun.errors import ConfigError, StorageError


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
