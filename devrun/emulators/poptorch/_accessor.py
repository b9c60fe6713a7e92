"""Asynchronous loading, without the asynchrony: order, shapes and errors are real.

The original fills a ring of shared tensors in a child process. Here one element is
taken ahead, in the caller, which is where a failing first element shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from poptorch import enums
from poptorch._args_parser import rebuilt, tensors_in
from poptorch._options_base import check
from poptorch.poptorch_core import Error

_NOTHING = object()


class AsynchronousDataAccessor:
    """Iterates over `dataset`, one element ahead; each `iter` is a new pass.

    Raises:
        Error: The first element can't be made, or the loader loads asynchronously
            already.
        AssertionError: A loader with `drop_last=False` whose last batch would be short.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: enums.SharingStrategy = enums.SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
    ) -> None:
        if getattr(dataset, "_accessor", None) is not None:
            raise Error(
                "The DataLoader has an AsynchronousDataAccessor already: use it with "
                "DataLoaderMode.Sync"
            )
        combined = getattr(dataset, "combinedBatchSize", None)
        if rebatched_size is None and combined is not None and combined > 1:
            check(
                bool(getattr(dataset, "drop_last", True)),
                "The DataLoader must have drop_last=True: an incomplete batch does not "
                "fit the buffers of an AsynchronousDataAccessor",
            )
        check(
            isinstance(sharing_strategy, enums.SharingStrategy),
            f"not a SharingStrategy: {sharing_strategy!r}",
        )
        self._dataset = dataset
        self._rebatched_size = rebatched_size
        self._rebatch_drops = bool(getattr(dataset, "_rebatch_drops", True))
        self._source: Iterator[Any] | None = None
        self._first: Any = _NOTHING
        self._begin()

    def _begin(self) -> None:
        try:
            self._source = self._elements()
            self._first = next(self._source, _NOTHING)
        except Exception as error:
            raise Error(f"worker thread failed to start: {error}") from error

    def _elements(self) -> Iterator[Any]:
        base = getattr(self._dataset, "_worker_batches", None)
        source = base() if base is not None else iter(self._dataset)
        if self._rebatched_size is None:
            return iter(source)
        return rebatch(source, self._rebatched_size, self._rebatch_drops)

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        if self._source is None:
            self._begin()
        source, first = self._source, self._first
        self._source, self._first = None, _NOTHING
        if first is not _NOTHING:
            yield first
        if source is not None:
            yield from source

    def terminate(self) -> None:
        """Stop loading; a later `iter` begins again."""
        self._source, self._first = None, _NOTHING


def rebatch(source: Iterator[Any], size: int, drops: bool) -> Iterator[Any]:
    """Cut the samples of batches of any size into batches of `size`.

    With `drops`, what is left at the end is dropped, else it is a shorter batch.
    """
    kept: list[torch.Tensor] = []
    like: Any = None
    for batch in source:
        tensors = list(tensors_in(batch))
        like = batch
        kept = [torch.cat(p) for p in zip(kept, tensors)] if kept else tensors  # noqa: B905 - equal by construction
        while kept and len(kept[0]) >= size:
            yield rebuilt(like, iter([t[:size] for t in kept]))
            kept = [t[size:] for t in kept]
    if kept and len(kept[0]) and not drops:
        yield rebuilt(like, iter(kept))
