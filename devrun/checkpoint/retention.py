"""Deleting checkpoints: only what is ours, and never the last whole one."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from devrun.checkpoint import fileops
from devrun.checkpoint.catalog import (
    list_checkpoints,
    read_pointer,
    remove_checkpoint,
)
from devrun.checkpoint.names import STEP_PATTERN, parse_leftover
from devrun.checkpoint.reader import verify_checkpoint
from devrun.checkpoint.storage import clear_directory, storage_errors
from devrun.errors import CheckpointError

_LOGGER = logging.getLogger("devrun.checkpoint")


def prune(
    root: str | os.PathLike[str],
    keep: int,
    protect: Iterable[str | os.PathLike[str]] = (),
    *,
    pattern: str = STEP_PATTERN,
) -> list[Path]:
    """Delete all but the newest `keep` whole checkpoints; the paths deleted.

    Only names that match `pattern` are counted and deleted. The one `best.json`
    points at and those in `protect` (names or paths) are neither. Nothing is deleted
    before a newer one that stays has been verified again, byte by byte; of the others
    the manifest and the sizes are looked at. Those found damaged are not counted and
    not deleted. `keep` of 0 or less keeps everything.

    Raises:
        StorageError: the disk refused.
    """
    if keep <= 0:
        return []
    safe = {Path(name).name for name in protect} | {read_pointer(root, "best")}
    kept, verified, removed = 0, False, []
    for info in reversed(list_checkpoints(root)):
        if info.path.name in safe or not re.fullmatch(pattern, info.path.name):
            continue
        problem = info.problem
        if problem is None and not verified:
            try:
                verify_checkpoint(info.path)
                verified = True
            except CheckpointError as error:
                problem = str(error)
        if problem is not None:
            _LOGGER.warning("not counted as a checkpoint to keep: %s", problem)
        elif kept < keep:
            kept += 1
        else:
            remove_checkpoint(info.path)
            removed.append(info.path)
    return removed


def set_others_aside(
    root: str | os.PathLike[str],
    run_id: str,
    after: int | None = None,
    *,
    name: str | None = None,
) -> Path | None:
    """Move checkpoints that a run does not go on from into `root/previous-N`, so that
    it replaces none of them; where they are now, or None if there were none.

    Those are the checkpoints of other runs, and with `after`, the number of updates
    that the run goes back to, its own later ones; with `name` the one of that name
    only.

    Raises:
        StorageError: the disk refused.
    """
    root = Path(root)
    if name is not None and not (root / name).is_dir():
        return None  # most often: not all the manifests are read for each save
    others = [
        info.path.name
        for info in list_checkpoints(root)
        if info.manifest is not None
        and name in (None, info.path.name)
        and (
            info.manifest.run_id not in (None, run_id)
            or (after is not None and info.step > after)
        )
    ]
    if not others:
        return None
    number = 1
    while (root / f"previous-{number}").exists():
        number += 1
    place = f"previous-{number}"
    with (
        storage_errors(f"cannot move the checkpoints in {str(root)!r}"),
        fileops.directory(root) as fd,
    ):
        fileops.make_directory(place, fd)
        for other in others:
            fileops.rename(other, f"{place}/{other}", fd)
        fileops.sync(fd)
    return root / place


def sweep_leftovers(root: str | os.PathLike[str]) -> list[str]:
    """Remove what a killed write or deletion left in `root`; the names removed.

    A directory that a running process still writes is left alone. A checkpoint that
    was set aside for its replacement comes back if the replacement never came.

    Raises:
        StorageError: the disk refused.
    """
    root, removed = Path(root), []
    if not root.is_dir():
        return []
    with storage_errors(f"cannot clean {str(root)!r}"), fileops.directory(root) as fd:
        for entry in fileops.names(fd):
            parsed = parse_leftover(entry)
            if parsed is None:
                continue
            kind, name = parsed
            if kind == "old" and fileops.file_type(name, fd) is None:
                fileops.rename(entry, name, fd)
                fileops.sync(fd)
                _LOGGER.warning("checkpoint %s was being replaced: restored", name)
            elif _sweep(entry, fd):
                removed.append(entry)
    return removed


def _sweep(entry: str, parent: int) -> bool:
    kind = fileops.file_type(entry, parent)
    if kind not in ("file", "directory"):
        return False
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(entry, flags, dir_fd=parent)
    try:
        if not fileops.try_lock(fd):
            return False
        if kind == "file":
            fileops.unlink(entry, parent)
        else:
            clear_directory(entry, parent)
    except OSError as error:
        _LOGGER.warning("%s stays: %s", entry, error.strerror or error)
        return False
    finally:
        os.close(fd)
    return True
