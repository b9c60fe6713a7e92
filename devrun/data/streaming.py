"""Data sets that are read in an order of their own: divided among processes.

An iterable data set says by what it has how a run may treat it:

    shard(num_shards, index)     one like it with that share of the samples; called for
                                 each process, and in it for each worker
    sharded = True               it divides itself among processes and workers
    set_epoch(epoch)             told before each epoch

These are the names that Hugging Face's `datasets` uses too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from devrun.errors import ConfigError


def divided(dataset: Any, rank: int, world_size: int) -> Any:
    """`dataset` for one of `world_size` processes, each of which reads its own share.

    Raises:
        ConfigError: it does not say how it is divided, and there are several.
    """
    if callable(getattr(dataset, "shard", None)):
        return Share(dataset, rank, world_size)
    if world_size == 1 or getattr(dataset, "sharded", False):
        return dataset
    raise ConfigError(
        f"the iterable data set {type(dataset).__name__} does not say how {world_size} "
        "processes divide it, and each would read all of it: give it a method "
        "shard(num_shards, index), or an attribute sharded = True if it divides itself"
    )


class Share(IterableDataset[Any]):
    """What one process, and in it each worker, reads of `dataset`."""

    def __init__(self, dataset: Any, rank: int, world_size: int) -> None:
        self.dataset, self.rank, self.world_size = dataset, rank, world_size

    def __iter__(self) -> Iterator[Any]:
        return iter(self._share())

    def __len__(self) -> int:
        return len(self._share())

    def set_epoch(self, epoch: int) -> None:
        """Told to the data set, if it wants to know."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def _share(self) -> Any:
        worker, count, index = get_worker_info(), self.world_size, self.rank
        # Hugging Face's divide themselves among workers
        of_workers = not type(self.dataset).__module__.startswith("datasets.")
        if worker is not None and of_workers:
            count *= worker.num_workers
            index = index * worker.num_workers + worker.id
        if count == 1:
            return self.dataset
        return self.dataset.shard(num_shards=count, index=index)
