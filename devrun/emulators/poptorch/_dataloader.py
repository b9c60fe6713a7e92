"""`poptorch.DataLoader`: torch's loader for combined batches.

One batch holds what one call of the model consumes: the micro-batch times device
iterations, accumulation steps and replicas (divided by the size of input groups).
"""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from poptorch import enums
from poptorch._accessor import AsynchronousDataAccessor
from poptorch._compile import micro_batches
from poptorch._dataset_parts import ProcessSampler, joined
from poptorch._errors import Error
from poptorch._logging import logger
from poptorch._options_base import check
from poptorch.options import Options


class DataLoader(torch.utils.data.DataLoader[Any]):
    """See the module; `drop_last` is True unless said otherwise.

    Raises:
        AssertionError: Options of another type, or a combination that cannot work.
        Error: A batch sampler together with what it excludes.
    """

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: enums.DataLoaderMode = enums.DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> None:
        self._accessor: AsynchronousDataAccessor | None = None
        check(isinstance(options, Options), "options must be a poptorch.Options")
        options._freeze()
        self._options = options
        self._part: ProcessSampler | None = None
        self._joined = 0
        self._rebatch_drops = drop_last
        self._is_iterable = isinstance(dataset, IterableDataset)
        parts = micro_batches(options)
        self._combined = None if batch_size is None else batch_size * parts
        if persistent_workers is None:
            persistent_workers = num_workers > 0
        kwargs.update(num_workers=num_workers, persistent_workers=persistent_workers)
        rebatch = _rebatch_size(
            mode, drop_last, rebatched_worker_size, self._combined, self._is_iterable
        )
        if batch_sampler is not None:
            _check_sampler(batch_size, shuffle, options, auto_distributed_partitioning)
            kwargs["batch_sampler"] = batch_sampler
            self._joined, rebatch = parts, None
            self._combined = getattr(batch_sampler, "batch_size", 1) * parts
        else:
            if auto_distributed_partitioning and options.Distributed.numProcesses > 1:
                self._part = self._partitioned(dataset, shuffle, drop_last)
                kwargs["sampler"] = self._part
            elif self._is_iterable:
                self._check_iterable(kwargs, num_workers)
            else:
                kwargs["shuffle"] = bool(shuffle)
            if batch_size is not None:
                worker_drops = drop_last and rebatch is None
                kwargs.update(
                    batch_size=rebatch if rebatch is not None else self._combined,
                    drop_last=worker_drops,
                )
            else:
                kwargs["batch_size"] = None
        super().__init__(dataset, **kwargs)
        if not drop_last and rebatch is None:
            self._warn_of_short_batch()
        if mode != enums.DataLoaderMode.Sync:
            self._load_ahead(async_options or {}, rebatch is not None)

    def _load_ahead(self, settings: dict[str, Any], rebatching: bool) -> None:
        self._rebatching = rebatching
        if rebatching:
            settings = {**settings, "rebatched_size": self._combined}
        self._accessor = AsynchronousDataAccessor(self, **settings)

    def _partitioned(
        self, dataset: Any, shuffle: bool | None, drop_last: bool
    ) -> ProcessSampler:
        distributed = self._options.Distributed
        check(
            not self._is_iterable,
            "auto_distributed_partitioning needs a dataset with an index: partition an "
            "iterable dataset yourself and pass auto_distributed_partitioning=False",
        )
        seed = None
        if shuffle:
            check(
                self._options.exists("random_seed"),
                "Shuffling over several processes needs options.randomSeed() so that "
                "all of them draw the same order",
            )
            seed = self._options.random_seed
        return ProcessSampler(
            len(dataset),
            distributed.numProcesses,
            distributed.processId,
            self._combined or 1,
            drop_last,
            seed,
        )

    def _check_iterable(self, kwargs: dict[str, Any], num_workers: int) -> None:
        if num_workers > 1 and kwargs.get("worker_init_fn") is None:
            logger.warning(
                "Several workers on an IterableDataset without worker_init_fn: each "
                "worker yields all of the data, which gives duplicates"
            )

    def _warn_of_short_batch(self) -> None:
        if self._is_iterable or self._combined is None:
            return
        size = len(self._part if self._part is not None else self.dataset)  # type: ignore[arg-type]
        if size % self._combined:
            logger.warning(
                "The number of elements in the dataset (%d) is not divisible by the "
                "number of elements processed per step (%d): the last tensor will be "
                "smaller. Set drop_last=True to avoid that.",
                size,
                self._combined,
            )

    @property
    def combinedBatchSize(self) -> int | None:
        """Samples in one batch; None with `batch_size=None`."""
        return self._combined

    @property
    def options(self) -> Options:
        """The options, which are frozen now."""
        return self._options

    def terminate(self) -> None:
        """Stop asynchronous loading."""
        if self._accessor is not None:
            self._accessor.terminate()

    def _worker_batches(self) -> Iterator[Any]:
        """What the workers load, before any rebatching."""
        batches = super().__iter__()
        if self._joined > 1:
            return joined(batches, self._joined, self._rebatch_drops)
        return batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._accessor is not None:
            return iter(self._accessor)
        return self._worker_batches()

    def __len__(self) -> int:
        if self._joined:
            rest = 0 if self._rebatch_drops else self._joined - 1
            return (super().__len__() + rest) // self._joined
        if self._accessor is None or not self._rebatching or self._combined is None:
            return super().__len__()
        total = len(self._part if self._part is not None else self.dataset)  # type: ignore[arg-type]
        rest = 0 if self._rebatch_drops else self._combined - 1
        return (total + rest) // self._combined


def _rebatch_size(
    mode: enums.DataLoaderMode,
    drop_last: bool,
    requested: int | None,
    combined: int | None,
    iterable: bool,
) -> int | None:
    """How many samples a worker loads at once, where they are put together later."""
    rebatched = mode == enums.DataLoaderMode.AsyncRebatched or (
        mode == enums.DataLoaderMode.Async and not drop_last
    )
    if combined is None or not rebatched:
        return None
    if requested is not None:
        check(
            requested <= combined,
            f"rebatched_worker_size ({requested}) must not be above the combined batch "
            f"size ({combined})",
        )
        return requested
    return combined


def _check_sampler(
    batch_size: int | None, shuffle: bool | None, options: Options, automatic: bool
) -> None:
    if batch_size != 1 or shuffle:
        raise Error("batch_sampler excludes batch_size and shuffle")
    if options.Distributed.numProcesses > 1 and automatic:
        raise Error(
            "batch_sampler excludes automatic distributed partitioning: pass "
            "auto_distributed_partitioning=False"
        )
