"""Which snapshot a checkpoint is written from: a whole one, or one process's pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from devrun.checkpoint.codec import has_shards, shared_memory
from devrun.checkpoint.draft import Snapshot
from devrun.checkpoint.names import check_name


def write_checkpoint(
    root: str | os.PathLike[str],
    name: str,
    parts: Mapping[str, Any],
    meta: Mapping[str, Any],
) -> Path:
    """Write `parts` as the checkpoint `root/name`; its path, once it is durable.

    Each part becomes `PART.json`, with its tensors in `PART.safetensors`. A
    checkpoint of that name is replaced, unless it holds the same already. With sharded
    tensors in them each process must call it, with its own (`sharded`).

    Args:
        parts: name -> tree; see `codec` for what a tree may hold.
        meta: `step` (int, required); `run_id`, `parent_step`, `device`, `emulated`
            and `git` have their places in the manifest; anything else is kept as
            the manifest's `meta`.

    Raises:
        CheckpointError: a name or a value that cannot be saved; nothing is written.
        StorageError: the disk refused; what was there before is intact.
    """
    check_name(name)
    return take_snapshot(parts, meta).write(root, name)


def take_snapshot(
    parts: Mapping[str, Any],
    meta: Mapping[str, Any],
    to_host: Callable[[Tensor], Tensor] = shared_memory,
) -> Snapshot:
    """As `Snapshot.take`; of sharded tensors, what this process has (`sharded`)."""
    if not has_shards(parts):
        return Snapshot.take(parts, meta, to_host)
    from devrun.checkpoint.sharded import ShardedSnapshot  # imports for half a second

    return ShardedSnapshot.take(parts, meta, to_host)
