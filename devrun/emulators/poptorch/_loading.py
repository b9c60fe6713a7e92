"""The process that an `AsynchronousDataAccessor` loads in.

Elements lie in a ring of tensors in shared memory; a pipe tells which are there. The
parent names the iteration that it wants, by number; the process says with each element
to which iteration it belongs, so that what was loaded in vain is recognised.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import multiprocessing

from poptorch._args_parser import custom_parser, rebuilt, tensors_in
from poptorch._errors import Error
from poptorch._logging import logger
from poptorch._options_base import check


@dataclass
class Job:
    """What a process is to load, and how."""

    dataset: Any
    """An iterable, or the path of a file that holds one, pickled."""
    buffer_size: int
    wait: float
    """Seconds between two looks at a full ring."""
    load_indefinitely: bool
    early_preload: bool
    rebatched_size: int | None
    start_method: str
    """How a loader of the dataset starts workers, as it would in the parent."""

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled along stays until the process has it, tensors' files too."""
        text = io.BytesIO()
        self._pickler = ForkingPickler(text)
        self._pickler.dump(self.dataset)
        return {**self.__dict__, "dataset": text.getvalue(), "_pickler": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.dataset = pickle.loads(state["dataset"])  # noqa: S301 - the parent's own

    def batches(self) -> Iterator[Any]:
        """What the dataset yields in one pass, as it is."""
        if isinstance(self.dataset, str):
            with open(self.dataset, "rb") as file:
                self.dataset = pickle.load(file)  # noqa: S301 - the parent's own
        return iter(self.dataset)

    def elements(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same, cut to `rebatched_size` where that is set."""
        if self.rebatched_size is None:
            return batches
        drops = bool(getattr(self.dataset, "_rebatch_drops", True))
        return rebatch(batches, self.rebatched_size, drops)


class Ring:
    """`size` elements like the first one, and which of them are there to be read."""

    def __init__(self, first: list[torch.Tensor], size: int, rows: int | None) -> None:
        self.indices_mem = torch.zeros(size, dtype=torch.bool).share_memory_()
        self._buffers = [
            torch.empty(
                (size, *(t.shape if rows is None else (rows, *t.shape[1:]))),
                dtype=t.dtype,
            ).share_memory_()
            for t in first
        ]

    def write(self, slot: int, tensors: list[torch.Tensor]) -> int | None:
        """Put an element in; its rows, if those do not fill the slot.

        Raises:
            RuntimeError: Another shape than that of the first element, or another
                number of tensors.
        """
        rows = None
        if len(tensors) != len(self._buffers):
            raise RuntimeError(
                f"an element of {len(tensors)} tensors does not fit the buffers, made "
                f"for {len(self._buffers)}"
            )
        for buffer, tensor in zip(self._buffers, tensors):
            room = buffer[slot]
            if tensor.dim() and room.dim() and len(tensor) < len(room):
                rows = len(tensor)
                room = room[:rows]
            if room.shape != tensor.shape:
                raise RuntimeError(
                    f"an element of shape {list(tensor.shape)} does not fit the "
                    f"buffers, made for {list(room.shape)}"
                )
            room.copy_(tensor)
        self.indices_mem[slot] = True
        return rows

    def read(self, slot: int, rows: int | None) -> list[torch.Tensor]:
        """The tensors of an element, which stay where they are."""
        return [b[slot] if rows is None else b[slot][:rows] for b in self._buffers]


def main(job: Job, pipe: Connection, parents_end: Connection) -> None:
    """Load until told to stop, or until the parent is gone.

    Raises:
        Exception: What the dataset raised, after the parent was told.
    """
    parents_end.close()  # a copy, which would keep the pipe open without the parent
    multiprocessing.set_start_method(job.start_method, force=True)
    logger.debug("AsynchronousDataAccessor worker process: %d", os.getpid())
    try:
        _Loading(job, pipe).run()
    except (EOFError, ConnectionError, KeyboardInterrupt):
        logger.debug("AsynchronousDataAccessor worker: stopped")
    except Exception as error:
        pipe.send(("error", 0, _sendable(error), None))
        raise


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
    except (pickle.PicklingError, TypeError, AttributeError):
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class _Loading:
    """The loop of the process."""

    def __init__(self, job: Job, pipe: Connection) -> None:
        self._job = job
        self._pipe = pipe
        self._wanted = 0
        self._slot = 0

    def run(self) -> None:
        """One pass after the other, and one at most that is not asked for yet."""
        job, iteration = self._job, 1
        batches = job.batches()
        first = next(batches, None)
        if first is None:
            raise Error("The Dataset is empty")
        # like what is loaded, which may be too few samples to make a whole element
        tensors = flat(first)
        self._ring = Ring(tensors, job.buffer_size, job.rebatched_size)
        self._pipe.send(("ring", 0, _empty(first), self._ring))
        elements: Any = job.elements(chain([first], batches))
        if job.rebatched_size in (None, len(tensors[0]) if tensors[0].dim() else 1):
            self._put(iteration, flat(next(elements)))
        while True:
            ahead = job.early_preload if iteration == 1 else job.load_indefinitely
            while iteration > self._wanted + ahead:
                self._listen(None)
            if elements is None or iteration < self._wanted:
                iteration = max(iteration, self._wanted)
                elements = job.elements(job.batches())
            if self._pass(iteration, elements):
                self._pipe.send(("end", iteration, None, None))
                iteration, elements = iteration + 1, None

    def _pass(self, iteration: int, elements: Iterator[Any]) -> bool:
        """Load to the end; False if another iteration is wanted before."""
        return all(self._put(iteration, flat(element)) for element in elements)

    def _put(self, iteration: int, tensors: list[torch.Tensor]) -> bool:
        self._listen(0.0)
        while self._ring.indices_mem[self._slot] and self._wanted <= iteration:
            self._listen(self._job.wait)
        if self._wanted > iteration:
            return False
        rows = self._ring.write(self._slot, tensors)
        self._pipe.send(("element", iteration, self._slot, rows))
        self._slot = (self._slot + 1) % self._job.buffer_size
        return True

    def _listen(self, seconds: float | None) -> None:
        """Take one message, for which to wait so long.

        Raises:
            EOFError: The parent says stop, or says nothing any more.
        """
        if self._pipe.poll(seconds):
            wanted = self._pipe.recv()
            if wanted is None:
                raise EOFError
            self._wanted = wanted


def flat(element: Any) -> list[torch.Tensor]:
    """The tensors of an element.

    Raises:
        AssertionError: It is neither a tensor, nor a flat tuple, list or dictionary of
            tensors, nor of a type with a parser of its own.
    """
    if custom_parser(element) is None and not isinstance(element, torch.Tensor):
        values = element.values() if isinstance(element, dict) else element
        for index, value in enumerate(values):
            check(
                isinstance(value, torch.Tensor),
                f"Tensor at index {index} is not a torch tensor ({type(value)}). "
                "AsynchronousDataAccessor expects data to be organised as a flat 1D "
                "container of tensors.",
            )
    return list(tensors_in(element))


def _empty(element: Any) -> Any:
    """An element without its values; a tuple becomes a list on its way, as it does."""
    tensors = (torch.empty(0) for _ in tensors_in(element))
    plain = list(element) if isinstance(element, tuple) else element
    return rebuilt(plain, tensors)


def rebatch(source: Iterator[Any], size: int, drops: bool) -> Iterator[Any]:
    """Cut the samples of batches of any size into batches of `size`.

    With `drops`, what is left at the end is dropped, else it is a shorter batch.
    """
    kept: list[torch.Tensor] = []
    like: Any = None
    for batch in source:
        tensors = list(tensors_in(batch))
        like = batch
        kept = [torch.cat(p) for p in zip(kept, tensors)] if kept else tensors
        while kept and len(kept[0]) >= size:
            yield rebuilt(like, iter([t[:size] for t in kept]))
            kept = [t[size:] for t in kept]
    if kept and len(kept[0]) and not drops:
        yield rebuilt(like, iter(kept))
