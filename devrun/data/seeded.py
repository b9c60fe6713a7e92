"""A data set whose every sample draws from streams of its own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any

import torch
from torch.utils.data import (
    Dataset,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from devrun.blame import cause_of
from devrun.data import rng
from devrun.data.sampler import SampleKey
from devrun.errors import DataError

_COLLATE = 3  # salt: collating draws from another stream than the first sample
_told: MutableMapping[Any, int] = weakref.WeakKeyDictionary()
"""The epoch that a data set heard of last: several loaders may read the same one."""


class SampleError(DataError):
    """A sample could not be read; raised where it was read, worker or not.

    One string argument, so that torch can raise it again in the main process.
    """


class Samples(list):
    """The samples of one batch on their way to the collate function."""

    def __init__(self, items: Iterable[Any], key: SampleKey) -> None:
        super().__init__(items)
        self.key = key
        self.stacked: list[torch.Tensor] | None = None
        """What `default_collate` would make of them, where that is there already."""


class SeededDataset(Dataset[Any]):
    """`dataset` read by `SampleKey`, each sample seeded from (seed, epoch, index).

    `random`, numpy's global stream and torch's CPU stream are set before a sample
    is read (7 microseconds); in the main process they are put back afterwards, once
    a batch. torch's TensorDataset draws nothing, and a batch of it is read at once. A
    generator that a data set makes for itself is its own affair. A data set with a
    `__getitems__` of its own reads whole batches and is seeded by the first key of the
    batch; one with `set_epoch` hears of each epoch. A plain index reads the sample.
    Everything else is delegated.

    Raises:
        SampleError: a sample, or a whole batch, raised.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self._takes_epoch = callable(getattr(dataset, "set_epoch", None))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in vars(self):  # being unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, SampleKey):
            return self.dataset[key]
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[Any]) -> Any:
        """The samples of one batch; called by torch's DataLoader."""
        if not keys or not isinstance(keys[0], SampleKey):
            return [self.dataset[key] for key in keys]
        if get_worker_info() is not None or _draws_nothing(self.dataset):
            return self._read(keys)
        with rng.preserved():
            return self._read(keys)

    def _read(self, keys: Sequence[SampleKey]) -> Samples:
        first = keys[0]
        if self._takes_epoch:
            self._tell_epoch(first.epoch)
        indices = [key.index for key in keys]
        if reads_batches(self.dataset):
            rng.reseed(rng.mix(self.seed, first.epoch, first.index))
            try:
                return Samples(self.dataset.__getitems__(indices), first)
            except Exception as error:
                raise _failed("the batch that starts with ", first, error) from error
        samples = Samples((), first)
        draws = not _draws_nothing(self.dataset)
        if not draws and (stacked := _rows(self.dataset, indices)):
            samples.extend(zip(*stacked))
            samples.stacked = stacked
            return samples
        for key in keys:
            if draws:
                rng.reseed(rng.mix(self.seed, key.epoch, key.index))
            try:
                samples.append(self.dataset[key.index])
            except Exception as error:
                raise _failed("", key, error) from error
        return samples

    def _tell_epoch(self, epoch: int) -> None:
        """Pass a new epoch on: a copy in a worker hears of it no other way."""
        try:
            told = _told.get(self.dataset)
            _told[self.dataset] = epoch
        except TypeError:  # not hashable: telling twice does no harm
            told = None
        if told != epoch:
            self.dataset.set_epoch(epoch)


class SeededCollate:
    """`collate_fn` with a stream of its own, the same in a worker as outside one.

    Raises:
        SampleError: the samples do not make a batch.
    """

    def __init__(self, collate_fn: Callable[[Any], Any] | None, seed: int) -> None:
        self.collate_fn = default_collate if collate_fn is None else collate_fn
        self.seed = seed

    def __call__(self, samples: Any) -> Any:
        if not isinstance(samples, Samples):
            return self.collate_fn(samples)
        if get_worker_info() is not None or self.collate_fn is default_collate:
            return self._collate(samples)
        with rng.preserved():
            return self._collate(samples)

    def _collate(self, samples: Samples) -> Any:
        key = samples.key
        if self.collate_fn is not default_collate:
            rng.reseed(rng.mix(self.seed, key.epoch, key.index, _COLLATE))
        elif samples.stacked is not None:
            return samples.stacked
        try:
            return self.collate_fn(list(samples))
        except Exception as error:
            remedy = ""
            if "equal size" in str(error):  # what torch says of samples to be stacked
                remedy = (
                    "; samples that differ in size are padded by data.buckets or a "
                    "collate_fn"
                )
            raise SampleError(
                f"{cause_of(error)}{remedy}; the batch that starts with sample "
                f"{key.index}{_where()} cannot be put together"
            ) from error


def _failed(what: str, key: SampleKey, error: Exception) -> SampleError:
    place = f"{what}sample {key.index}, epoch {key.epoch + 1}{_where()}"
    return SampleError(f"{cause_of(error)}; data loading failed at {place}")


def _where() -> str:
    worker = get_worker_info()
    return "" if worker is None else f" (worker {worker.id})"


def _draws_nothing(dataset: Any) -> bool:
    """Whether reading a sample surely leaves the random streams alone.

    Only of these very types: a subclass may do anything.
    """
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset


def _rows(dataset: Any, indices: list[Any]) -> list[torch.Tensor] | None:
    """Of the tensors of a TensorDataset, one kernel each; None where one by one is due,
    as where that will tell which sample is not there."""
    try:
        while type(dataset) is Subset:
            indices = [dataset.indices[index] for index in indices]
            dataset = dataset.dataset
        plain = all(
            type(t) is torch.Tensor and t.is_contiguous() for t in dataset.tensors
        )
        rows = torch.tensor(indices, dtype=torch.int64)
        return [t.index_select(0, rows) for t in dataset.tensors] if plain else None
    except (IndexError, TypeError, ValueError, RuntimeError):
        return None


def reads_batches(dataset: Any) -> bool:
    """Whether a data set reads whole batches for a reason of its own.

    torch's Subset has `__getitems__` only to pass it on.
    """
    own = callable(getattr(dataset, "__getitems__", None))
    return own and (type(dataset) is not Subset or reads_batches(dataset.dataset))
