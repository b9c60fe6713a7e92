"""Asynchronous loading in a process of its own."""

from __future__ import annotations

import os
import pickle
import tempfile
from typing import Any

from torch import multiprocessing

from poptorch import enums
from poptorch._errors import Error
from poptorch._loading import Job
from poptorch._options_base import check
from poptorch._worker import Worker


class AsynchronousDataAccessor:
    """Iterates over `dataset`, which a process loads ahead; each `iter` is a new pass.

    Elements are tensors, flat tuples, lists and dictionaries of tensors, or of types
    with a parser. They lie in shared memory and are valid until the next is taken.

    Args:
        dataset: any iterable that can be pickled; with `Fork`, any.
        buffer_size: elements of the ring.
        miss_sleep_time_in_ms: between two looks at a ring that is full.
        load_indefinitely: go on with the next pass at the end of one.
        early_preload: fill the ring before there is an `iter`.
        sharing_strategy: how the process starts and gets the dataset.
        rebatched_size: samples of an element, put together from those of the dataset.

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
        self._worker: Worker | None = None
        if getattr(dataset, "_accessor", None) is not None:
            raise Error(
                "The DataLoader has an AsynchronousDataAccessor already: use it with "
                "DataLoaderMode.Sync"
            )
        combined = getattr(dataset, "combinedBatchSize", None)
        if rebatched_size is None and combined is not None and combined > 1:
            check(
                bool(getattr(dataset, "drop_last", True))
                or getattr(dataset, "_joined", 0) > 0,
                "The DataLoader must have drop_last=True: an incomplete batch does not "
                "fit the buffers of an AsynchronousDataAccessor",
            )
        check(
            isinstance(sharing_strategy, enums.SharingStrategy),
            f"not a SharingStrategy: {sharing_strategy!r}",
        )
        self._dataset = dataset
        self.rebatched_size = rebatched_size
        job = Job(
            dataset,
            buffer_size,
            miss_sleep_time_in_ms / 1000,
            load_indefinitely,
            early_preload,
            rebatched_size,
            multiprocessing.get_start_method(),
        )
        if sharing_strategy != enums.SharingStrategy.FileSystem:
            self._worker = Worker(job, sharing_strategy)
            return
        with tempfile.TemporaryDirectory() as folder:
            job.dataset = os.path.join(folder, "dataset.pkl")
            with open(job.dataset, "wb") as file:
                pickle.dump(dataset, file)
            self._worker = Worker(job, sharing_strategy)

    def __len__(self) -> int:
        size = len(self._dataset)
        if self.rebatched_size and getattr(self._dataset, "_accessor", None) is None:
            return int(size * self._dataset.batch_size // self.rebatched_size)
        return size

    def __iter__(self) -> AsynchronousDataAccessor:
        self._running().begin()
        return self

    def __next__(self) -> Any:
        return self._running().next()

    def _running(self) -> Worker:
        if self._worker is None:
            raise AssertionError("The AsynchronousDataAccessor has been terminated")
        return self._worker

    def terminate(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()
