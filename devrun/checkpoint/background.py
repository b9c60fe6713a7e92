"""Saving while training goes on: the run waits only for a copy of its state.

The copy goes into host memory that is made before it is needed, and kept from save to
save: fresh memory would cost several times as much for its page faults. A thread then
writes it by the same protocol, to the same bytes, as a save that is waited for. At most
one write is in flight.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from devrun.checkpoint.codec import has_shards
from devrun.checkpoint.draft import take_snapshot

_LOGGER = logging.getLogger("devrun.checkpoint")
_ALIGNMENT = 64
_BLOCK = 1 << 26


class HostBuffers:
    """Host memory for one copy of a state; pinned where the state is on a device."""

    def __init__(self) -> None:
        self._blocks: dict[bool, list[Tensor]] = {False: [], True: []}
        self._used: dict[bool, tuple[int, int]] = {}

    def reuse(self) -> None:
        """All of it is free again: the copies taken so far are done with."""
        self._used = {}

    def prepare(self, tensors: Iterable[Tensor]) -> None:
        """Have the memory for a copy of `tensors`, which may be used at once."""
        sizes = {False: 0, True: 0}
        for tensor in tensors:
            sizes[not tensor.is_cpu] += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        for pinned, size in sizes.items():
            if size and not self._blocks[pinned]:
                self._blocks[pinned].append(_memory(size, pinned=pinned))
                if not pinned:  # a page is there once it has been written to
                    self._blocks[pinned][0][:: mmap.PAGESIZE].zero_()

    def copy(self, tensor: Tensor) -> Tensor:
        """A contiguous copy of `tensor`, valid until `reuse`."""
        if not tensor.nbytes:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        memory = self._reserve(tensor.nbytes, pinned=not tensor.is_cpu)
        return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def _reserve(self, size: int, *, pinned: bool) -> Tensor:
        blocks = self._blocks[pinned]
        index, start = self._used.get(pinned, (0, 0))
        while index < len(blocks) and start + size > blocks[index].numel():
            index, start = index + 1, 0
        if index == len(blocks):
            blocks.append(_memory(max(size, _BLOCK), pinned=pinned))
        end = start + size
        self._used[pinned] = (index, -(-end // _ALIGNMENT) * _ALIGNMENT)
        return blocks[index][start:end]


class BackgroundWriter:
    """Writes checkpoints in a thread, one at a time.

    A write that fails is logged at once, and raised by the next call of `check`,
    `wait` or `save`. The interpreter does not exit before the thread is done.
    """

    def __init__(self) -> None:
        self._buffers = HostBuffers()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._ranks: Any = None

    def prepare(self, tensors: Iterable[Tensor]) -> None:
        """Let the thread make the memory for a copy of `tensors`.

        The first save then takes no longer than those after it. Where there is not
        enough of it, that is left for the save to find.
        """
        expected = list(tensors)

        def prepare() -> None:
            with suppress(MemoryError, RuntimeError, OSError):
                self._buffers.prepare(expected)

        self.call(prepare)

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

    def check(self) -> None:
        """Raise, once, what a write that is over has failed of."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait(self) -> None:
        """Return when nothing is in flight.

        Raises:
            StorageError: the write failed.
        """
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.check()

    def _work(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - raised in the main thread
            _LOGGER.error("%s", error)
            self._failure = error


def _memory(size: int, *, pinned: bool) -> Tensor:
    if pinned:
        return torch.empty(size, dtype=torch.uint8).pin_memory()
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # data workers have no use of it; and large pages are there with fewer faults
    for advice in ("MADV_DONTFORK", "MADV_HUGEPAGE"):
        if hasattr(mmap, advice):
            try:
                area.madvise(getattr(mmap, advice))
            except OSError:  # this kernel is built without it
                _LOGGER.debug("no %s here", advice)
    return torch.frombuffer(area, dtype=torch.uint8)
