"""Where `resume("auto")` finds the run to go on with."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from devrun.checkpoint import Checkpoint, Like, read_latest
from devrun.errors import CheckpointError


def newest_checkpoint(
    roots: Sequence[Path], logger: logging.Logger, like: Like | None = None
) -> Checkpoint | None:
    """The newest whole checkpoint in `roots`, read; None where there is nothing yet.

    `like`: as `read_checkpoint` takes it.

    Raises:
        CheckpointError: there are only damaged ones, or files in MMCV's layout: to
            start again over those would lose them.
    """
    found = read_latest(*roots, like=like)
    where = ", ".join(map(str, roots))
    files = [path for root in roots for path in root.glob("*.pth")]
    if files and found is None:
        raise CheckpointError(
            f"there are only files in MMCV's layout in {where}, of which 'auto' takes "
            "none; name the one to resume from"
        )
    if found is None:
        logger.info("no checkpoint in %s yet: starting from scratch", where)
    elif files:
        logger.warning(
            "%d files in MMCV's layout in %s are passed over", len(files), where
        )
    return found
