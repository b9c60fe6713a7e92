"""A file of a checkpoint is read as the manifest lists it, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devrun.checkpoint.manifest import FileEntry
from devrun.errors import CheckpointError


def from_file(
    read: Callable[..., Any], fd: int, entry: FileEntry, *arguments: Any
) -> Any:
    """What `read` gives for a file; CheckpointError that names it where it cannot."""
    try:
        return read(entry.name, fd, entry.size, *arguments)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{entry.name} cannot be read: {reason}") from error
    except ValueError as error:
        raise CheckpointError(f"{entry.name} is damaged: {error}") from error


def check_digest(entry: FileEntry, sha256: str) -> None:
    """Refuse bytes that are not those that the manifest lists."""
    if sha256 != entry.sha256:
        raise CheckpointError(f"{entry.name} is damaged: its sha256 does not match")
