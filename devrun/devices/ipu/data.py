"""The user's loader as a `poptorch.DataLoader` of the combined batch.

One item is what one call consumes: micro-batch x device iterations x accumulation x
replicas, in the order in which the device cuts it. Order, resume and per-sample
randomness are those of every device (`make_resumable`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from devrun.data import workers
from devrun.data.resumable import ResumableLoader, make_resumable
from devrun.devices.ipu.batch import whole
from devrun.errors import ConfigError
from devrun.step import MicroBatches

__all__ = ["GlobalBatch", "IPULoader", "combined_loader"]

_KEPT = (
    "num_workers",
    "collate_fn",
    "timeout",
    "worker_init_fn",
    "generator",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
)
"""Arguments of a loader that have nothing to do with the size of its batches."""

logger = logging.getLogger("devrun")


class GlobalBatch:
    """The samples of one call as a product of its factors."""

    def __init__(self, options: Any, micro_batch: int | None) -> None:
        shared = options.replication_factor // options.input_group_size
        self.factors = {
            "micro-batch": micro_batch,
            "device iterations": options.device_iterations,
            "accumulation": options.Training.gradient_accumulation,
            "replicas": shared,
        }
        self.parts = 1
        for name, factor in self.factors.items():
            self.parts *= 1 if name == "micro-batch" else int(factor or 1)

    @property
    def size(self) -> int | None:
        micro = self.factors["micro-batch"]
        return None if micro is None else micro * self.parts

    def __str__(self) -> str:
        shown = [
            f"{name} {factor}"
            for name, factor in self.factors.items()
            if factor is not None and (factor != 1 or name != "device iterations")
        ]
        total = "" if self.size is None else f" = {self.size} samples"
        return " x ".join(shown) + total


class IPULoader:
    """A `poptorch.DataLoader` with an epoch, which can start anywhere in it.

    Args:
        source: the same batches from a plain loader; order and seeds are its affair.
        asynchronous: fetch ahead in a process of PopTorch's, a new one each epoch so
            that it starts where it should.

    Every attribute not found here is that of `source`.
    """

    def __init__(
        self, sdk: Any, options: Any, source: ResumableLoader, *, asynchronous: bool
    ) -> None:
        self.source = source
        self._sdk = sdk
        self._asynchronous = asynchronous
        self._accessor: Any = None
        self.loader = sdk.DataLoader(options, **_arguments(source, options))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "source" not in vars(self):
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Any]:
        if self._asynchronous:
            return self._ahead()
        with workers.deferred():
            iterator: Iterator[Any] = iter(self.loader)
        workers.watch(iterator)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of `epoch`."""
        self.source.set_epoch(epoch)

    @property
    def _iterator(self) -> Any:
        """Of workers that outlive the epoch, as a torch loader has it."""
        return getattr(self.loader, "_iterator", None)

    def abandon(self, iterator: Any) -> None:
        """End an iteration that has failed or was broken off."""
        if self._asynchronous:
            self._terminate()
            return
        workers.stop(iterator)
        if self._iterator is iterator:
            self.loader._iterator = None

    def _ahead(self) -> Iterator[Any]:
        self._accessor = self._sdk.AsynchronousDataAccessor(
            _Plain(self.loader), load_indefinitely=False
        )
        try:
            yield from self._accessor
        finally:
            self._terminate()

    def _terminate(self) -> None:
        accessor, self._accessor = self._accessor, None
        if accessor is not None:
            accessor.terminate()


class _Plain:
    """A loader as nothing but an iterable with a length."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


class _Joined:
    """`loader`, with `count` of its batches in each item; the rest at the end is left.

    For what is not a plain DataLoader: nothing is known but that it yields batches.
    """

    def __init__(self, loader: Any, count: int) -> None:
        self._loader, self._count = loader, count

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_loader" not in vars(self):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader) // self._count

    def __iter__(self) -> Iterator[Any]:
        group = MicroBatches()
        for batch in self._loader:
            group.append(batch)
            if len(group) == self._count:
                yield whole(group)
                group = MicroBatches()


class _JoinedSampler(Sampler[list[Any]]):
    """Somebody's own batch sampler with `count` of its batches in one."""

    def __init__(self, batches: Any, count: int) -> None:
        self.batches, self.count = batches, count
        self.sampler = getattr(batches, "sampler", None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "batches" not in vars(self):
            raise AttributeError(name)
        return getattr(self.batches, name)

    @property
    def batch_size(self) -> int | None:
        size = getattr(self.batches, "batch_size", None)
        return None if size is None else size * self.count

    def __len__(self) -> int:
        return len(self.batches) // self.count

    def __iter__(self) -> Iterator[list[Any]]:
        group: list[Any] = []
        size = 0
        for number, batch in enumerate(self.batches, 1):
            size = size or len(batch)
            group += batch
            if number % self.count == 0:
                if len(group) == size * self.count:  # not the short last one
                    yield group
                group = []


class _Batches:
    """A data set whose items are the samples of a whole batch.

    PopTorch's loader would put a combined batch together from collated micro-batches,
    which may differ in shape and lose what is no tensor.
    """

    def __init__(self, samples: Any) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, keys: list[Any]) -> Any:
        together = getattr(self._samples, "__getitems__", None)
        return [self._samples[k] for k in keys] if together is None else together(keys)


def combined_loader(
    sdk: Any, options: Any, loader: Any, *, seed: int, training: bool
) -> Any:
    """A loader of combined batches for `options`, over the data of `loader`.

    Raises:
        ConfigError: fewer samples than one combined batch, in training.
    """
    if isinstance(loader, sdk.DataLoader):  # the user's own combines batches itself
        return loader
    batch = GlobalBatch(options, getattr(loader, "batch_size", None))
    if type(loader) is not DataLoader:
        return _Joined(loader, batch.parts) if batch.parts > 1 and training else loader
    if training:
        _check_samples(loader, batch)
    mode = getattr(loader, "mode", None) or "sync"
    combined = _combined(loader, batch, training)
    source = make_resumable(combined, seed=seed, training=training)
    return IPULoader(
        sdk, options, source, asynchronous=training and mode.startswith("async")
    )


def _combined(
    loader: DataLoader[Any], batch: GlobalBatch, training: bool
) -> DataLoader[Any]:
    """A plain loader of the combined batch with everything else as in `loader`."""
    options: dict[str, Any] = {name: getattr(loader, name) for name in _KEPT}
    drop = training or loader.drop_last
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        options.update(batch_size=batch.size, drop_last=drop and batch.size is not None)
        if not isinstance(loader.dataset, IterableDataset):
            options["sampler"] = loader.sampler
    elif type(loader.batch_sampler) is BatchSampler:
        own = loader.batch_sampler
        if own.sampler is loader.sampler:
            options.update(batch_size=batch.size, sampler=own.sampler, drop_last=drop)
        else:
            size = own.batch_size * batch.parts
            options["batch_sampler"] = BatchSampler(own.sampler, size, drop)
    elif training:
        options["batch_sampler"] = _JoinedSampler(loader.batch_sampler, batch.parts)
    else:
        options["batch_sampler"] = loader.batch_sampler
    twin: DataLoader[Any] = DataLoader(loader.dataset, **options)
    kept = ("on_sample_error", "max_skipped", "group_lengths")
    vars(twin).update({name: getattr(loader, name, None) for name in kept})
    return twin


def _arguments(source: ResumableLoader, options: Any) -> dict[str, Any]:
    """Arguments of `poptorch.DataLoader` besides the options."""
    arguments = {name: getattr(source, name) for name in ("dataset", *_KEPT)}
    if isinstance(source.dataset, IterableDataset):
        parts, size = GlobalBatch(options, None).parts, source.batch_size
        arguments["batch_size"] = None if size is None else size // parts
        arguments["drop_last"] = source.drop_last
    else:
        arguments.update(batch_size=None, drop_last=False, sampler=source.sampler)
        if source.batch_sampler is not None:
            arguments.update(
                dataset=_Batches(source.dataset), sampler=source.batch_sampler
            )
    arguments["auto_distributed_partitioning"] = False
    return arguments


def _check_samples(loader: DataLoader[Any], batch: GlobalBatch) -> None:
    if isinstance(loader.dataset, IterableDataset) or batch.size is None:
        return
    count = len(loader.dataset)  # type: ignore[arg-type]
    if count < batch.size:
        raise ConfigError(
            f"the data set has {count} samples, fewer than one update needs: {batch}; "
            "take a smaller batch size, fewer replicas or less accumulation"
        )
    if left := count % batch.size:
        logger.info(
            "ipu: %d of %d samples do not fill a whole update and are left out of each "
            "epoch (another order leaves out others)",
            left,
            count,
        )
