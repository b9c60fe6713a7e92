"""Where a run may write, so that no run overwrites another, and which checkpoint of one
is meant."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devrun.cli.console import complain
from devrun.cli.lost import mark_lost
from devrun.errors import CheckpointError, ConfigError, nearest
from devrun.files import checkpoints_near, user_path
from devrun.lock import lock_directory

DEFAULT_ROOT = "work_dirs"
RUN_FILES = re.compile(
    r"checkpoints|tf_logs|run(-\d{8}_\d{6})?\.json|config(-\d{8}_\d{6})?\.\w+"
    r"|\d{8}_\d{6}.*|.*\.pth|latest\.json|best\.json"
)
"""What a run leaves in its work_dir; other files there are the user's own."""
WORDS = ("best", "latest")
"""What stands for a checkpoint of the run that a config trains."""


def holds_run(work_dir: Path) -> bool:
    """Whether checkpoints of a run are in `work_dir`."""
    checkpoints = work_dir / "checkpoints"
    if checkpoints.is_dir() and any(
        not entry.name.startswith(".") for entry in checkpoints.iterdir()
    ):
        return True
    return work_dir.is_dir() and any(work_dir.glob("*.pth"))


def choose_work_dir(
    named: str | None, stem: str, *, resume_from: str | None, overwrite: bool
) -> Path:
    """The directory for a run; nothing is created yet.

    Args:
        named: what the user chose, or None for `work_dirs/<stem>`, or the next free
            `work_dirs/<stem>-2`, ... when that holds a run.
        stem: name of the config file without its ending.
        resume_from: a checkpoint, whose run goes on in the same place, or `auto`.
        overwrite: the run that is there will be set aside.

    Raises:
        ConfigError: a directory chosen by the user holds another run already.
    """
    own = _run_of(resume_from) if resume_from else None
    if named is not None:
        work_dir = user_path(named)
        goes_on = resume_from == "auto" or (
            own is not None and own.resolve() == work_dir.resolve()
        )
        if holds_run(work_dir) and not (goes_on or overwrite):
            raise ConfigError(
                f"work_dir {str(work_dir)!r} holds the checkpoints of another run: go "
                "on with it (--resume-from auto), choose another (--work-dir), or set "
                "it aside (--overwrite)"
            )
        return work_dir
    if own is not None:
        return own
    work_dir, taken, number = Path(DEFAULT_ROOT) / stem, None, 2
    while holds_run(work_dir) and not overwrite:
        taken, work_dir = work_dir, Path(DEFAULT_ROOT) / f"{stem}-{number}"
        number += 1
    return taken if resume_from == "auto" and taken is not None else work_dir


def check_checkpoint(key: str, path: str) -> None:
    """Refuse a checkpoint that is not there before anything slow or written.

    Args:
        key: `resume_from` or `load_from`, for the message.
        path: its value; `auto` and addresses with a scheme are not looked at.

    Raises:
        CheckpointError: nothing is there.
    """
    place = user_path(path)
    if path == "auto" or "://" in path:
        return
    if not os.path.lexists(place):
        hint = nearest(path, checkpoints_near(place)) or "no checkpoint is near there"
        if key == "resume_from":
            hint += "; the newest of a run: --work-dir DIR --resume-from auto"
        raise CheckpointError(f"{key}: there is no {path!r}; {hint}")


def chosen_checkpoint(text: str, places: tuple[Path, ...] = ()) -> str:
    """The checkpoint that `text` names: a path as it is, or for

    - a work_dir, or the `checkpoints` in one: its newest whole checkpoint,
    - `best.json` or `latest.json` in there: the one it points at,
    - `best` or `latest`, where no such path is: the one of `places`.

    Raises:
        CheckpointError: there is none.
    """
    from devrun.checkpoint import checkpoint_at, find_latest, read_pointer

    path = user_path(text)
    if text in WORDS and not path.exists():
        if text == "latest":
            found = find_latest(*places)
        else:
            named = ((place, read_pointer(place, "best")) for place in places)
            found = next((place / name for place, name in named if name), None)
        if found is None:
            where = ", ".join(map(str, places)) or "a work_dir, which is not known here"
            raise CheckpointError(
                f"there is no {text} checkpoint in {where}; name one by its path, or "
                "the run by work_dir"
            )
        return str(found)
    found = checkpoint_at(path)
    return text if found == path else str(found)


def places_of(cfg: Mapping[str, Any], work_dir: Path) -> tuple[Path, ...]:
    """Where a run of `cfg` in `work_dir` keeps its checkpoints."""
    apart = (cfg.get("checkpoint_config") or {}).get("out_dir")
    best = (cfg.get("evaluation") or {}).get("out_dir")
    return (
        work_dir / "checkpoints",
        *([user_path(apart) / work_dir.name] if apart else []),
        *([user_path(best)] if best else []),
    )


def _run_of(checkpoint: str) -> Path | None:
    """The work_dir that `checkpoint` is, or is in; None if there is none."""
    if checkpoint == "auto":
        return None
    place = user_path(checkpoint)
    around = list(place.parents)[:2]  # a slice of it itself is of Python 3.10
    return next((one for one in (place, *around) if holds_run(one)), None)


def claim(work_dir: Path, *, overwrite: bool) -> Path | None:
    """Create and lock `work_dir`, check that it can be written, set an old run aside.

    A run that was in it and is gone is told.

    The path of the old run's new place, or None where there was none to move.

    Raises:
        ConfigError: it cannot be created or written, or another run writes in it.
    """
    make_writable(work_dir)
    with _refusals(work_dir):
        lock_directory(work_dir)
        if note := mark_lost(work_dir):
            complain(note, "note")
        if overwrite and holds_run(work_dir):
            return _set_aside(work_dir)
    return None


def make_writable(work_dir: Path) -> None:
    """Create `work_dir`, and check that it can be written.

    Raises:
        ConfigError: it cannot.
    """
    with _refusals(work_dir):
        work_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=work_dir):
            pass


@contextmanager
def _refusals(work_dir: Path) -> Iterator[None]:
    """Turn what the disk says into one line; that it is full is told elsewhere."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        reason = error.strerror
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            reason = "a file stands there"
        raise ConfigError(
            f"work_dir {str(work_dir)!r} is not writable ({reason}); choose another "
            "with --work-dir"
        ) from error


def keep_aside(path: Path) -> None:
    """Rename a file of an earlier run to one with its time in the name."""
    if path.exists():
        stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(path.stat().st_mtime))
        path.replace(path.with_name(f"{path.stem}-{stamp}{path.suffix}"))


def _set_aside(work_dir: Path) -> Path:
    stamp = time.strftime("%Y%m%d_%H%M%S")
    target = work_dir / f"previous-{stamp}"
    target.mkdir()
    for name in sorted(os.listdir(work_dir)):
        if RUN_FILES.fullmatch(name):
            (work_dir / name).rename(target / name)
    return target
