"""Data sets that are read in an order of their own: divided, and gone on with.

An iterable data set says by what it has how a run may treat it:

    shard(num_shards, index)     one like it with that share of the samples; called for
                                 each process, and in it for each worker
    sharded = True               it divides itself among processes and workers
    state_dict(), load_state_dict(state)
                                 its place, plain values; iterated after the second, it
                                 goes on there
    set_epoch(epoch)             told before each epoch

These are the names that Hugging Face's `datasets` and torchdata use too.
"""

from __future__ import annotations

import copy
import glob
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from devrun.data import rng
from devrun.errors import ConfigError, DataError
from devrun.files import check_regular, user_path

_FILES = 5  # salt


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

    What is fetched ahead of it is not counted: the place is noted with each batch.
    Without workers that is the data set's own; with some it takes torchdata's
    `StatefulDataLoader`, which asks them (`pip install devrun[streaming]`).
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        asks_loader = hasattr(loader, "load_state_dict")
        self._source: Any = loader if asks_loader else loader.dataset
        self._noted: deque[tuple[int, Any]] = deque()
        self._start: dict[str, Any] | None = None
        self.present: dict[str, Any] | None = None
        """`batches` of this epoch, and the `state` after them; what `go_on` takes."""

    @staticmethod
    def of(loader: Any) -> StreamPosition | None:
        """That of a loader whose position can be told; else None."""
        if not isinstance(loader, DataLoader) or not is_stateful(loader.dataset):
            return None
        known = hasattr(loader, "load_state_dict") or loader.num_workers == 0
        return StreamPosition(loader) if known else None

    def go_on(self, place: dict[str, Any] | None) -> None:
        """The next iteration begins at a `present` of before."""
        self._start = place

    def opened(self, skip: int) -> int:
        """Called before an iteration that is to leave out `skip` batches: those still
        to be read and dropped."""
        place, self._start = self._start, None
        self._noted.clear()
        self.present = None
        if not skip or place is None or place["batches"] != skip:
            return skip
        self._source.load_state_dict(place["state"])
        return 0

    def noted(self, batches: Iterable[Any], start: int) -> Iterator[Any]:
        """`batches`, of which `start` were before, and the place after each."""
        for number, batch in enumerate(batches, start + 1):
            self._noted.append((number, copy.deepcopy(self._source.state_dict())))
            yield batch

    def handed_out(self, items: Iterable[Any], size: int, start: int) -> Iterator[Any]:
        """`items` of `size` batches each, told as they are asked for."""
        for number, item in enumerate(items, 1):
            while self._noted and self._noted[0][0] <= start + number * size:
                count, state = self._noted.popleft()
                self.present = {"batches": count, "state": state}
            yield item


def is_stateful(dataset: Any) -> bool:
    """Whether it can tell its place and go on there."""
    inner = dataset.dataset if isinstance(dataset, Share) else dataset
    names = ("state_dict", "load_state_dict")
    return isinstance(inner, IterableDataset) and all(
        callable(getattr(inner, name, None)) for name in names
    )


def engine_for(dataset: Any, workers: int) -> Any:
    """torchdata's loader where a stream has workers whose place it can tell."""
    if not workers or not is_stateful(dataset):
        return DataLoader
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return DataLoader

    def made(**options: Any) -> Any:
        with warnings.catch_warnings():  # it calls what torch gave up
            warnings.filterwarnings("ignore", message=".*set_vital")
            return StatefulDataLoader(**options)

    return made


class FileShards(IterableDataset[Any]):
    """Samples of many files, each read by one reader from beginning to end.

    A subclass gives `read`. A position is a file and the samples taken of it.

    Args:
        files: a pattern such as `train-*.tar`, or a list of paths.
        shuffle: the order of the files follows from (seed, epoch).
        seed: of that order.

    Raises:
        DataError: no such files.
        ConfigError: fewer files than readers.
    """

    def __init__(
        self, files: str | Sequence[str], *, shuffle: bool = False, seed: int = 0
    ) -> None:
        if isinstance(files, str):
            found = sorted(glob.glob(str(user_path(files))))
        else:
            found = [str(user_path(path)) for path in files]
        if not found:
            raise DataError(f"there is no file {files!r}; check the pattern")
        self.files, self.shuffle, self.seed = found, shuffle, seed
        self.epoch = 0
        self._readers, self._reader = 1, 0
        self._file, self._sample = 0, 0
        self._goes_on = False

    def read(self, path: Path) -> Iterable[Any]:
        """The samples of one file, always in the same order."""
        raise NotImplementedError

    def shard(self, num_shards: int, index: int) -> FileShards:
        """The files of one of so many readers."""
        if num_shards > len(self.files):
            raise ConfigError(
                f"{len(self.files)} files cannot be divided among {num_shards} readers "
                "(processes times workers): make more files, or take fewer workers"
            )
        share = copy.copy(self)
        share._readers, share._reader = num_shards, index
        return share

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of `epoch`."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        """Files finished, and samples read of the next one."""
        return {"file": self._file, "sample": self._sample}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next iteration goes on there."""
        self._file, self._sample, self._goes_on = state["file"], state["sample"], True

    def __iter__(self) -> Iterator[Any]:
        if not self._goes_on:
            self._file = self._sample = 0
        self._goes_on = False
        for path in self._order()[self._file :]:
            check_regular([path])
            for sample in islice(self.read(Path(path)), self._sample, None):
                self._sample += 1
                yield sample
            self._file, self._sample = self._file + 1, 0

    def _order(self) -> list[str]:
        """This reader's files, in the order of the epoch."""
        files = self.files
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(rng.mix(self.seed, self.epoch, 0, _FILES))
            files = [files[i] for i in torch.randperm(len(files), generator=generator)]
        return files[self._reader :: self._readers]
