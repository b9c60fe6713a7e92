"""`Writing`: how the checkpoints of a run get to the disk, at once or meanwhile.

Rank 0 writes what every process has alike; pieces of weights that are spread over the
processes are written by each of them (`devrun.checkpoint.sharded`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from devrun import dist
from devrun.checkpoint import (
    BackgroundWriter,
    has_shards,
    write_checkpoint,
)
from devrun.ranks import together


class Writing:
    """Of one run; every method but `wait` is called on all ranks together."""

    def __init__(self) -> None:
        self._writer = BackgroundWriter()
        self._in_flight = False  # on every rank: whether any may still be writing

    @property
    def failed(self) -> bool:
        """Whether a write in the background of this process has failed."""
        return self._writer.failed

    @property
    def in_flight(self) -> bool:
        """Whether a write in the background may not be over."""
        return self._in_flight

    def write(
        self,
        path: Path,
        tree: Mapping[str, Any],
        about: Mapping[str, Any],
        *,
        background: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Write the parts in `tree` as the checkpoint `path`.

        Args:
            about: its `meta`, with `step` and `run_id`.
            background: return once a copy is taken.
            then: called on rank 0 when it is durable.
        """

        def write() -> None:
            if background:
                done = then if dist.is_main() else None
                self._writer.save(path.parent, path.name, tree, about, done)
            else:
                write_checkpoint(path.parent, path.name, tree, about)

        (together if has_shards(tree) else dist.on_main)(write)
        self._in_flight = background
        if not background:
            self.call(then)

    def call(self, then: Callable[[], None] | None) -> None:
        """Call it on rank 0, in the background."""
        if then is not None:
            dist.on_main(lambda: self._writer.call(then))
            self._in_flight = True

    def finish(self) -> None:
        """Return when nothing is being written.

        Raises:
            StorageError: what was written in the background is not on the disk.
        """
        if self._in_flight:
            self._in_flight = False
            together(self.wait)

    def wait(self) -> None:
        """The part of `finish` that this process can do alone."""
        self._writer.wait()
