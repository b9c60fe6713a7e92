"""`LoaderSpec`: what a loader reads, in which order, and how, as one value.

A user gives a torch DataLoader, or a config describes one.
`LoaderSpec.of` reads it. Anything else, a subclass of the user's included, may
do anything, and stays as it is. `PreparedLoader` makes of one or the other what a run
iterates; a device that reads larger batches (IPU) changes the spec.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from devrun.blame import cause_of
from devrun.data import workers
from devrun.data.sampler import EpochBatchSampler, KeyedBatchSampler
from devrun.data.seeded import SeededCollate, SeededDataset
from devrun.data.streaming import divided
from devrun.dist import get_dist_info
from devrun.errors import ConfigError, DataError

BATCHES = ("samples_per_gpu", "batch_size", "imgs_per_gpu")
"""Keys of the samples of a batch, in `data` or in the section of a loader."""
_WORKERS = (
    "num_workers",
    "timeout",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "worker_init_fn",
    "in_order",
)
"""Arguments of a DataLoader that have nothing to do with what is in its batches."""

logger = logging.getLogger("devrun")


@dataclass(frozen=True)
class LoaderSpec:
    """A plain DataLoader with the seed and the share of this process."""

    dataset: Any
    sampler: Any
    """In torch's words, of samples."""
    batch_sampler: Any
    """The user's own; None where `sampler` and `batch_size` say it all."""
    batch_size: int | None
    """Of this process; None for an own batch sampler, or samples that are batches."""
    drop_last: bool
    collate_fn: Any
    workers: dict[str, Any]
    seed: int
    """Of the order, and of what a sample draws."""
    rank: int = 0
    world_size: int = 1
    training: bool = True

    @classmethod
    def of(
        cls,
        loader: Any,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        training: bool = True,
        pin_memory: bool | None = None,
    ) -> Any:
        """That of a plain DataLoader; anything else is returned as it is.

        `pin_memory` overrides what the loader has.
        """
        if type(loader) is not DataLoader:
            return loader
        known = inspect.signature(DataLoader.__init__).parameters  # in_order: torch 2.6
        options = {name: getattr(loader, name) for name in _WORKERS if name in known}
        if pin_memory is not None:
            options["pin_memory"] = pin_memory
        own: Any = loader.batch_sampler
        if isinstance(loader.dataset, IterableDataset) or (
            type(own) is BatchSampler and own.sampler is loader.sampler
        ):
            own = None
        return cls(
            loader.dataset,
            loader.sampler,
            own,
            loader.batch_size,
            loader.drop_last,
            loader.collate_fn,
            options,
            seed,
            rank,
            world_size,
            training,
        )

    def arguments(self) -> dict[str, Any]:
        """Of a DataLoader that yields the same batches wherever it starts.

        torch's own random or sequential order becomes that of an `EpochBatchSampler`
        over a `SeededDataset`, sharded over the ranks. A sampler or batch sampler of
        the user's own stays and gets seeded samples (sharding is its affair); an
        iterable data set keeps its order, and is divided as it says (`streaming`).

        Raises:
            ConfigError: no samples, or fewer than one batch with `drop_last`; an
                iterable data set for several processes that it does not divide among.
        """
        options = {**self.workers, "dataset": self.dataset}
        options["worker_init_fn"] = workers.WorkerInit(options["worker_init_fn"])
        options["collate_fn"] = self.collate_fn
        if isinstance(self.dataset, IterableDataset):
            options["dataset"] = divided(self.dataset, self.rank, self.world_size)
            if hasattr(self.dataset, "set_epoch"):  # workers hear of it as they start
                options["persistent_workers"] = False
            return {
                **options,
                "batch_size": self.batch_size,
                "drop_last": self.drop_last,
            }
        check_samples(self.dataset)
        if self.batch_sampler is None and self.batch_size is None:
            return {**options, "batch_size": None, "sampler": self.sampler}
        options["dataset"] = SeededDataset(self.dataset, self.seed)
        options["collate_fn"] = SeededCollate(self.collate_fn, self.seed)
        return {**options, "batch_sampler": self._batches()}

    def _batches(self) -> EpochBatchSampler | KeyedBatchSampler:
        order_seed = self._order_seed()
        if order_seed is None:
            self._warn_of_shards()
            own = self.batch_sampler
            if own is None:
                own = BatchSampler(self.sampler, self.batch_size or 1, self.drop_last)
            return KeyedBatchSampler(own, seed=self.seed)
        sampler = EpochBatchSampler(
            len(self.dataset),
            self.batch_size or 1,
            shuffle=isinstance(self.sampler, RandomSampler),
            seed=order_seed,
            drop_last=self.drop_last,
            rank=self.rank,
            world_size=self.world_size,
            pad=self.training,
        )
        if self.training and len(sampler) == 0:
            raise ConfigError(
                f"{sampler.num_samples} samples are fewer than one batch of "
                f"{sampler.global_batch_size} and drop_last is set; "
                "take a smaller batch or drop_last: false"
            )
        left = sampler.num_samples % sampler.global_batch_size
        again = 0 if self.drop_last else -left % self.world_size
        if self.training and again:
            logger.warning(
                "the last update of an epoch has %d samples for %d processes: it takes "
                "%d of the first ones again; drop_last: true leaves it out",
                left,
                self.world_size,
                again,
            )
        return sampler

    def _order_seed(self) -> int | None:
        """The seed of the order, or None if the order is not torch's own to replace."""
        sampler = self.sampler
        if self.batch_sampler is not None:
            return None
        if type(sampler) is SequentialSampler:
            return self.seed
        if type(sampler) is not RandomSampler or sampler.replacement:
            return None
        if sampler.num_samples != len(self.dataset):
            return None
        if sampler.generator is not None:  # the user chose the order by its seed
            return int(sampler.generator.initial_seed())
        return self.seed

    def _warn_of_shards(self) -> None:
        owners = (self.batch_sampler, self.sampler)
        counts = [getattr(owner, "num_replicas", None) for owner in owners]
        if get_dist_info()[1] > self.world_size and any(counts):
            raise ConfigError(
                f"the sampler {type(self.sampler).__name__} divides the samples over "
                f"{next(filter(None, counts))} processes, of which {self.world_size} "
                "read different ones (parallel: mesh tensor): leave the sampler out",
                key="sampler",
            )
        if self.world_size > 1 and not any(hasattr(o, "num_replicas") for o in owners):
            logger.warning(
                "the sampler %s is used as it is by each of the %d processes; if it "
                "does not divide the samples, all train on the same ones",
                type(self.sampler).__name__,
                self.world_size,
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
        cause = cause_of(error)
        raise DataError(f"the length of the data set {name} failed: {cause}") from error
    if count == 0:
        raise DataError(f"the data set {name} is empty; check its path and split")
