"""Saving, also while training goes on: a run waits only for a copy of its state.

A thread writes it by the same protocol, to the same bytes, as a save that is waited
for. At most one write is in flight.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from devrun.checkpoint.codec import has_shards, shared_memory
from devrun.checkpoint.draft import Snapshot

_LOGGER = logging.getLogger("devrun.checkpoint")


class HostBuffers:
    """Host memory for one copy of a state; pinned where the state is on a device.

    It is kept from save to save: fresh memory would cost several times as much.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[Any, ...], list[Tensor]] = {}
        self._used: list[tuple[tuple[Any, ...], Tensor]] = []

    def reuse(self) -> None:
        """All of it is free again: the copies taken so far are done with."""
        self._free = {}
        for kind, memory in self._used:
            self._free.setdefault(kind, []).append(memory)
        self._used = []

    def copy(self, tensor: Tensor) -> Tensor:
        """A contiguous copy of `tensor`, valid until `reuse`."""
        kind = (tensor.shape, tensor.dtype, tensor.is_cpu)
        if self._free.get(kind):
            memory = self._free[kind].pop()
        else:
            memory = torch.empty(tensor.shape, dtype=tensor.dtype)
            if not tensor.is_cpu:
                with suppress(RuntimeError):  # torch pins memory for few devices
                    memory = memory.pin_memory()
        self._used.append((kind, memory))
        return memory.copy_(tensor)


class BackgroundWriter:
    """Writes checkpoints in a thread, one at a time.

    A write that fails is logged at once, and raised by the next call of
    `wait` or `save`. The interpreter does not exit before the thread is done.
    """

    def __init__(self) -> None:
        self._buffers = HostBuffers()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._ranks: Any = None

    @property
    def failed(self) -> bool:
        """Whether a failure waits to be raised."""
        return self._failure is not None

    def save(
        self,
        root: str | os.PathLike[str],
        name: str,
        parts: Mapping[str, Any],
        meta: Mapping[str, Any],
        then: Callable[[], None] | None = None,
    ) -> None:
        """Copy the state now, write it as `write_checkpoint` does later.

        Waits for the write before, if that is not done yet. Of sharded tensors each
        process writes its own, and all of them must call it.

        Args:
            then: called in the thread once the checkpoint is durable.

        Raises:
            CheckpointError: a name or a value that cannot be saved.
            StorageError: the write before failed; nothing is copied or written.
        """
        self.wait()
        self._buffers.reuse()
        snapshot = take_snapshot(parts, meta, self._buffers.copy)
        apart: dict[str, Any] = {}
        if has_shards(parts):  # the training goes on in the group of the run
            self._ranks = self._ranks or torch.distributed.new_group(backend="gloo")
            apart["ranks"] = self._ranks

        def write() -> None:
            snapshot.write(root, name, **apart)
            if then is not None:
                then()

        self.call(write)

    def call(self, function: Callable[[], None]) -> None:
        """Call it in the thread, once that is free; it fails as a write does.

        Raises:
            StorageError: the write before failed; nothing is called.
        """
        self.wait()
        self._thread = threading.Thread(
            target=self._work, args=(function,), name="devrun-save"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is in flight.

        Raises:
            StorageError: the write failed.
        """
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _work(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - raised in the main thread
            _LOGGER.error("%s", error)
            self._failure = error


def write_checkpoint(
    root: str | os.PathLike[str],
    name: str,
    parts: Mapping[str, Any],
    meta: Mapping[str, Any],
) -> Path:
    """Write `parts` as the checkpoint `root/name`; its path, once it is durable.

    Each part becomes `PART.json`, with its tensors in `PART.safetensors`. A
    checkpoint of that name is replaced. With sharded tensors in them each process must
    call it, with its own (`sharded`).

    Args:
        parts: name -> tree; see `codec` for what a tree may hold.
        meta: `step` (int, required); `run_id`, `device` and `emulated` have their
            places in the manifest; anything else is kept as the manifest's `meta`.

    Raises:
        CheckpointError: a name or a value that cannot be saved; nothing is written.
        StorageError: the disk refused; what was there before is intact.
    """
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
