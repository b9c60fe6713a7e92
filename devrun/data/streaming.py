"""Data sets that are read in an order of their own: divided, and gone on with.

An iterable data set says by what it has how a run may treat it:

    shard(num_shards, index)     one like it with that share of the samples; called for
                                 each process, and in it for each worker
    sharded = True               it divides itself among processes and workers
    state_dict(), load_state_dict(state)
                                 its place, plain values; iterated after the second, it
                                 goes on there
    set_epoch(epoch)             told before each epoch

These are the names that Hugging Face's `datasets` uses too.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

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
        self._own: Any = None
        self._state: Any = None

    def __iter__(self) -> Iterator[Any]:
        self._own = own = self._share()
        state, self._state = self._state, None
        if state is not None:
            own.load_state_dict(state)
        return iter(own)

    def __len__(self) -> int:
        return len(self._share())

    def set_epoch(self, epoch: int) -> None:
        """Told to the data set, if it wants to know."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def state_dict(self) -> Any:
        """Where the share stands."""
        return (self._own or self._share()).state_dict()

    def load_state_dict(self, state: Any) -> None:
        """The next iteration goes on there."""
        self._state = state

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


class StreamPosition:
    """Where a stream stands after the item that was handed out last.

    What is fetched ahead of it is not counted: the position is noted with each batch.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._noted: deque[tuple[int, Any]] = deque()
        self._start: dict[str, Any] | None = None
        self.present: dict[str, Any] | None = None
        """`batches` of this epoch, and the `state` after them; what `go_on` takes."""

    @staticmethod
    def of(loader: Any) -> StreamPosition | None:
        """That of a data set that can tell it, read without workers; else None."""
        if not isinstance(loader, DataLoader) or loader.num_workers:
            return None
        dataset: Any = loader.dataset
        inner = dataset.dataset if isinstance(dataset, Share) else dataset
        told = hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict")
        iterable = isinstance(inner, IterableDataset)
        return StreamPosition(dataset) if iterable and told else None

    def go_on(self, position: dict[str, Any] | None) -> None:
        """The next iteration begins at a `present` of before."""
        self._start = position

    def opened(self, skip: int) -> int:
        """Called before an iteration that is to leave out `skip` batches: those still
        to be read and dropped."""
        position, self._start = self._start, None
        self._noted.clear()
        self.present = None
        if not skip or position is None or position["batches"] != skip:
            return skip
        self._dataset.load_state_dict(position["state"])
        return 0

    def noted(self, batches: Iterable[Any], start: int) -> Iterator[Any]:
        """`batches`, of which `start` were before, and the position after each."""
        for number, batch in enumerate(batches, start + 1):
            self._noted.append((number, copy.deepcopy(self._dataset.state_dict())))
            yield batch

    def handed_out(self, items: Iterable[Any], size: int, start: int) -> Iterator[Any]:
        """`items` of `size` batches each, told as they are asked for."""
        for number, item in enumerate(items, 1):
            while self._noted and self._noted[0][0] <= start + number * size:
                count, state = self._noted.popleft()
                self.present = {"batches": count, "state": state}
            yield item
