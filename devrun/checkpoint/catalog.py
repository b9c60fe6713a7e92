"""Which checkpoints a directory holds, the newest whole one, and which of them stay."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from devrun.checkpoint import fileops
from devrun.checkpoint.manifest import Manifest
from devrun.checkpoint.names import (
    MANIFEST,
    STEP_PATTERN,
    is_name,
    parse_leftover,
    temporary,
)
from devrun.checkpoint.reader import (
    Checkpoint,
    read_checkpoint,
    read_manifest,
    verify_checkpoint,
)
from devrun.checkpoint.storage import clear_directory
from devrun.checkpoint.tensorfile import Like
from devrun.errors import CheckpointError
from devrun.files import disk_errors, parse_json, user_path

_LOGGER = logging.getLogger("devrun.checkpoint")


@dataclass(frozen=True)
class CheckpointInfo:
    """One entry of a directory of checkpoints, judged without reading its files."""

    path: Path
    manifest: Manifest | None
    problem: str | None = None

    @property
    def step(self) -> int:
        """From the manifest; of a damaged one, the last number of its name, or -1."""
        if self.manifest is not None:
            return self.manifest.step
        numbers = re.findall(r"\d+", self.path.name)
        return int(numbers[-1]) if numbers else -1


def list_checkpoints(root: str | os.PathLike[str]) -> list[CheckpointInfo]:
    """The checkpoints in `root`, oldest step first, damaged ones with their problem.

    A directory counts when it has a manifest or is named as devrun names them; links
    and hidden entries never do. Empty when `root` does not exist.

    Raises:
        StorageError: `root` cannot be read.
    """
    root = Path(root)
    if not root.exists():
        return []
    found = []
    with disk_errors(f"cannot read {str(root)!r}"):
        for name in os.listdir(root):
            path = root / name
            if not is_name(name) or fileops.file_type(path) != "directory":
                continue
            has_manifest = fileops.file_type(path / MANIFEST) is not None
            if has_manifest or re.fullmatch(STEP_PATTERN, name):
                found.append(_info(path))
    return sorted(found, key=_age)


def find_latest(*roots: str | os.PathLike[str]) -> Path | None:
    """The newest checkpoint in `roots` whose every byte verifies; None without one.

    Newest by the step in its manifest; those with other names (`best_...`) only where
    none is named by its step, since they are taken while hooks of their stage have
    still to run. Each one passed over is a warning with the reason.

    Raises:
        CheckpointError: there are checkpoints and none is whole; lists all of them.
    """
    found = _first_whole(roots, verify_checkpoint)
    return None if found is None else found[0]


def read_latest(
    *roots: str | os.PathLike[str], like: Like | None = None
) -> Checkpoint | None:
    """What `find_latest` finds, read: its bytes are verified and parsed at once.

    `like`: as `read_checkpoint` takes it.

    Raises:
        CheckpointError: as `find_latest`.
    """
    found = _first_whole(roots, partial(read_checkpoint, like=like))
    return None if found is None else found[1]


def _first_whole(
    roots: tuple[str | os.PathLike[str], ...], read: Callable[[Path], Any]
) -> tuple[Path, Any] | None:
    """The newest checkpoint that `read` does not refuse, and what it gave."""
    problems: list[str] = []
    found = [info for root in roots for info in list_checkpoints(root)]
    found.sort(key=_age)
    found.sort(key=lambda info: bool(re.fullmatch(STEP_PATTERN, info.path.name)))
    for info in reversed(found):
        problem = info.problem
        if problem is None:
            try:
                result = read(info.path)
            except CheckpointError as error:
                problem = str(error)
            else:
                for skipped in problems:
                    _LOGGER.warning("checkpoint passed over: %s", skipped)
                return info.path, result
        problems.append(problem)
    if problems:
        raise CheckpointError(
            f"none of the {len(problems)} checkpoints in "
            f"{', '.join(repr(str(root)) for root in roots)} is whole: "
            + "; ".join(problems)
        )
    return None


def checkpoint_at(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that a path means: itself, of a work_dir, or the `checkpoints` in
    one, the newest whole one, of `best.json` or `latest.json` what it points at.

    Raises:
        CheckpointError: there are checkpoints and none is whole, or a pointer without
            what it points at.
    """
    path = user_path(path)
    if path.name in ("best.json", "latest.json") and path.is_file():
        name = read_pointer(path.parent, path.stem)
        if name is None or not (path.parent / name).exists():
            raise CheckpointError(
                f"{str(path)!r} points at no checkpoint that is there; name one by "
                "its path"
            )
        return path.parent / name
    if path.is_dir() and not (path / MANIFEST).exists():
        return find_latest(path / "checkpoints", path) or path
    return path


def read_pointer(root: str | os.PathLike[str], pointer: str) -> str | None:
    """Name of the checkpoint that `POINTER.json` points at; None if it names none."""
    try:
        path = Path(root) / f"{pointer}.json"
        data = fileops.read_file(path, limit=1 << 16)
        name = parse_json(data)["checkpoint"]
    except (OSError, ValueError, TypeError, KeyError):
        return None  # advisory: whoever needs a checkpoint looks for it
    return name if isinstance(name, str) and is_name(name) else None


def remove_checkpoint(path: str | os.PathLike[str]) -> None:
    """Delete one checkpoint: out of sight first, then file by file.

    Raises:
        CheckpointError: not a checkpoint of devrun, or it contains something else.
        StorageError: the disk refused.
    """
    path = Path(path).absolute()
    read_manifest(path)
    with disk_errors(f"cannot remove {str(path)!r}"):
        if fileops.file_type(path) != "directory":
            raise CheckpointError(f"{str(path)!r} is a link; remove what it points at")
        doomed = path.with_name(temporary("del", path.name))
        fileops.rename(path, doomed)
        fileops.sync_directory(path.parent)
        clear_directory(doomed)


def _info(path: Path) -> CheckpointInfo:
    try:
        return CheckpointInfo(path, read_manifest(path))
    except CheckpointError as error:
        return CheckpointInfo(path, None, str(error))


def _age(info: CheckpointInfo) -> tuple[int, str, str]:
    created = info.manifest.created if info.manifest is not None else ""
    return info.step, created, info.path.name


def prune(root: str | os.PathLike[str], keep: int) -> list[Path]:
    """Delete all but the newest `keep` whole checkpoints; the paths deleted.

    Only those named by their step are counted and deleted; the one that `best.json`
    points at is neither. Nothing is deleted before a newer one that stays has been
    verified again, byte by byte; of the others the manifest and the sizes are looked
    at. Those found damaged are not counted and not deleted. `keep` of 0 or less keeps
    everything.

    Raises:
        StorageError: the disk refused.
    """
    if keep <= 0:
        return []
    best = read_pointer(root, "best")
    kept, verified, removed = 0, False, []
    for info in reversed(list_checkpoints(root)):
        name = info.path.name
        if name == best or not re.fullmatch(STEP_PATTERN, name):
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
) -> Path | None:
    """Move checkpoints that a run does not go on from into `root/previous-N`, so that
    it replaces none of them; where they are now, or None if there were none.

    Those are the checkpoints of other runs, and with `after`, the number of updates
    that the run goes back to, its own later ones.

    Raises:
        StorageError: the disk refused.
    """
    root = Path(root)
    others = [
        info.path.name
        for info in list_checkpoints(root)
        if info.manifest is not None
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
    place = root / f"previous-{number}"
    with disk_errors(f"cannot move the checkpoints in {str(root)!r}"):
        fileops.make_directory(place)
        for other in others:
            fileops.rename(root / other, place / other)
        fileops.sync_directory(root)
    return place


def sweep_leftovers(root: str | os.PathLike[str]) -> list[str]:
    """Remove what a killed write or deletion left in `root`; the names removed.

    Nobody else may write there meanwhile: a run locks the place. A checkpoint that was
    set aside for its replacement comes back if the replacement never came.

    Raises:
        StorageError: the disk refused.
    """
    root, removed = Path(root), []
    if not root.is_dir():
        return []
    with disk_errors(f"cannot clean {str(root)!r}"):
        for entry in sorted(os.listdir(root)):
            parsed = parse_leftover(entry)
            if parsed is None:
                continue
            kind, name = parsed
            if kind == "old" and fileops.file_type(root / name) is None:
                fileops.rename(root / entry, root / name)
                fileops.sync_directory(root)
                _LOGGER.warning("checkpoint %s was being replaced: restored", name)
            elif _sweep(root / entry):
                removed.append(entry)
    return removed


def _sweep(path: Path) -> bool:
    kind = fileops.file_type(path)
    try:
        if kind == "file":
            fileops.unlink(path)
        elif kind == "directory":
            clear_directory(path)
    except OSError as error:
        _LOGGER.warning("%s stays: %s", path.name, error.strerror or error)
        return False
    return kind in ("file", "directory")
