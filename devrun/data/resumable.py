"""Turning a plain DataLoader into one that can start anywhere, bit for bit."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from devrun.data import streams, workers
from devrun.data.sampler import EpochBatchSampler, KeyedBatchSampler
from devrun.data.seeded import SeededCollate, SeededDataset
from devrun.errors import ConfigError, DataError

__all__ = [
    "ERROR_POLICIES",
    "ResumableLoader",
    "check_samples",
    "error_policy",
    "make_resumable",
]

ERROR_POLICIES = ("stop", "skip")
_LOADER = 4  # salt

logger = logging.getLogger("devrun")


class ResumableLoader(DataLoader[Any]):
    """A DataLoader that never draws from the global streams and knows its epoch."""

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        max_skipped: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, generator=torch.Generator(), **options)
        self.seed, self.max_skipped = seed, max_skipped
        self._seed_workers(0)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of `epoch`, whichever came before."""
        self._seed_workers(epoch)
        owners = [self.batch_sampler, self.sampler]
        if not isinstance(self.dataset, SeededDataset):  # which tells its own
            owners.append(self.dataset)  # type: ignore[arg-type]
        for owner in owners:
            if callable(getattr(owner, "set_epoch", None)):
                owner.set_epoch(epoch)  # type: ignore[union-attr]

    def abandon(self, iterator: Any) -> None:
        """End an iteration that has failed; the next one starts workers afresh."""
        workers.stop(iterator)
        if getattr(self, "_iterator", None) is iterator:
            self._iterator = None

    def _seed_workers(self, epoch: int) -> None:
        # what an iterable data set, or a worker_init_fn, draws
        seed = streams.mix(self.seed, epoch, 0, _LOADER)
        self.generator.manual_seed(seed)

    def __iter__(self) -> Any:
        with workers.deferred():
            iterator = super().__iter__()
        workers.watch(iterator)
        return iterator


def make_resumable(
    loader: Any,
    *,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    training: bool = True,
    pin_memory: bool | None = None,
) -> Any:
    """A loader over the same data that yields the same batches wherever it starts.

    What a plain DataLoader with torch's own random or sequential order becomes: an
    `EpochBatchSampler` over a `SeededDataset`, sharded over the ranks. A sampler or
    batch sampler of the user's own stays and gets seeded samples (sharding is its
    affair); an iterable data set stays too, with worker seeds by epoch. Subclasses
    of DataLoader and other iterables are returned as they are. `pin_memory`
    overrides what the loader has.

    Raises:
        ConfigError: no samples, or fewer than one batch with `drop_last`.
    """
    if type(loader) is not DataLoader:
        return loader
    options = _options(loader, pin_memory)
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        options.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
        options["collate_fn"] = loader.collate_fn
        return ResumableLoader(dataset, seed=seed, **options)
    check_samples(dataset)
    if loader.batch_sampler is None:
        options.update(batch_size=None, sampler=loader.sampler)
        options["collate_fn"] = loader.collate_fn
        return ResumableLoader(dataset, seed=seed, **options)
    order_seed = _order_seed(loader, seed)
    if order_seed is None:
        _warn_of_shards(loader, world_size)
        sampler: Any = KeyedBatchSampler(loader.batch_sampler, seed=seed)
    else:
        sampler = EpochBatchSampler(
            len(dataset),  # type: ignore[arg-type]
            loader.batch_sampler.batch_size,  # type: ignore[attr-defined]
            shuffle=isinstance(loader.sampler, RandomSampler),
            seed=order_seed,
            drop_last=loader.drop_last,
            rank=rank,
            world_size=world_size,
            pad=training,
            lengths=vars(loader).get("group_lengths"),
        )
        _check_length(sampler, training)
    return ResumableLoader(
        SeededDataset(dataset, seed, error_policy(loader)),
        seed=seed,
        max_skipped=getattr(loader, "max_skipped", None),
        batch_sampler=sampler,
        collate_fn=SeededCollate(loader.collate_fn, seed),
        **options,
    )


def check_samples(dataset: Any) -> None:
    """Refuse a map-style data set that is empty or does not know its length."""
    name = type(dataset).__name__
    if not hasattr(type(dataset), "__len__"):
        raise ConfigError(
            f"the data set {name} has no length: give it a __len__, or derive it from "
            "torch.utils.data.IterableDataset"
        )
    try:
        count = len(dataset)
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"the length of the data set {name} failed: {cause}") from error
    if count == 0:
        raise DataError(f"the data set {name} is empty; check its path and split")


def _options(loader: DataLoader[Any], pin_memory: bool | None) -> dict[str, Any]:
    """The constructor arguments of `loader` that have nothing to do with order."""
    names = (
        "num_workers",
        "timeout",
        "multiprocessing_context",
        "prefetch_factor",
        "persistent_workers",
        "in_order",
    )
    known = inspect.signature(DataLoader.__init__).parameters  # in_order: torch 2.6
    options = {name: getattr(loader, name) for name in names if name in known}
    options["pin_memory"] = loader.pin_memory if pin_memory is None else pin_memory
    options["worker_init_fn"] = workers.WorkerInit(loader.worker_init_fn)
    return options


def _order_seed(loader: DataLoader[Any], seed: int) -> int | None:
    """The seed of the order, or None if the order is not torch's own to replace."""
    sampler = loader.sampler
    if type(loader.batch_sampler) is not BatchSampler:
        return None
    if loader.batch_sampler.sampler is not sampler:  # a BatchSampler of the user's
        return None
    if type(sampler) is SequentialSampler:
        return seed
    if type(sampler) is not RandomSampler or sampler.replacement:
        return None
    if sampler.num_samples != len(loader.dataset):  # type: ignore[arg-type]
        return None
    if sampler.generator is not None:  # the user chose the order by its seed
        return int(sampler.generator.initial_seed())
    return seed


def error_policy(loader: DataLoader[Any]) -> str:
    """What becomes of a sample that cannot be read: by the loader or its data."""
    chosen = getattr(loader, "on_sample_error", None)
    policy = chosen or getattr(loader.dataset, "on_sample_error", "stop")
    if policy not in ERROR_POLICIES:
        raise ConfigError(
            f"on_sample_error must be one of {', '.join(ERROR_POLICIES)}, "
            f"got {policy!r}"
        )
    return str(policy)


def _check_length(sampler: EpochBatchSampler, training: bool) -> None:
    if training and len(sampler) == 0:
        raise ConfigError(
            f"{sampler.num_samples} samples are fewer than one batch of "
            f"{sampler.global_batch_size} and drop_last is set; "
            "take a smaller batch or drop_last: false"
        )


def _warn_of_shards(loader: DataLoader[Any], world_size: int) -> None:
    owners = (loader.batch_sampler, loader.sampler)
    if world_size > 1 and not any(hasattr(owner, "num_replicas") for owner in owners):
        logger.warning(
            "the sampler %s is used as it is by each of the %d processes; if it does "
            "not divide the samples, all train on the same ones",
            type(loader.sampler).__name__,
            world_size,
        )
