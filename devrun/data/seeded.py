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


class Samples(list[Any]):
    """The samples of one batch on their way to the collate function."""

    def __init__(self, items: Iterable[Any], key: SampleKey) -> None:
        super().__init__(items)
        self.key = key
        self.stacked: list[torch.Tensor] | None = None
        """What `default_collate` would make of them, where that is there already."""
        self.skipped: list[tuple[Any, str]] = []


class Fetched(dict[str, Any]):
    """A collated `batch` from which samples were `skipped`: [(index, why), ...].

    A dict so that torch can pin what is inside; `PreparedLoader` opens it.
    """


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
        SampleError: a sample raised, and `on_error` is "stop"; or a whole batch did.
    """

    def __init__(self, dataset: Any, seed: int, on_error: str = "stop") -> None:
        self.dataset = dataset
        self.seed = seed
        self.on_error = on_error
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
        self._tell_epoch(keys[0].epoch)
        if reads_batches(self.dataset):
            return self._read_at_once(keys)
        samples = Samples((), keys[0])
        dataset, seed = self.dataset, self.seed
        draws = not _draws_nothing(dataset)
        if not draws and (stacked := _rows(dataset, [key.index for key in keys])):
            samples.extend(zip(*stacked, strict=True))
            samples.stacked = stacked
            return samples
        for key in keys:
            if draws:
                rng.reseed(rng.mix(seed, key.epoch, key.index))
            try:
                samples.append(dataset[key.index])
            except Exception as error:
                if self.on_error != "skip":
                    raise _failed(key, error) from error
                samples.skipped.append((key.index, cause_of(error)))
                last = error
        if not samples:
            raise SampleError(
                f"all {len(keys)} samples of a batch failed, the last with "
                f"{cause_of(last)}"
            ) from last
        return samples

    def _tell_epoch(self, epoch: int) -> None:
        """Pass a new epoch on: a copy in a worker hears of it no other way."""
        if not self._takes_epoch:
            return
        try:
            told = _told.get(self.dataset)
            _told[self.dataset] = epoch
        except TypeError:  # not hashable: telling twice does no harm
            told = None
        if told != epoch:
            self.dataset.set_epoch(epoch)

    def _read_at_once(self, keys: Sequence[SampleKey]) -> Samples:
        first = keys[0]
        rng.reseed(rng.mix(self.seed, first.epoch, first.index))
        try:
            items = self.dataset.__getitems__([key.index for key in keys])
        except Exception as error:
            raise _failed(self._culprit(keys), error) from error
        return Samples(items, first)

    def _culprit(self, keys: Sequence[SampleKey]) -> SampleKey | None:
        """The key that fails alone too, when the batch as a whole has failed."""
        for key in keys:
            try:
                self.dataset.__getitems__([key.index])
            except Exception:  # noqa: BLE001 - the batch's own error is raised
                return key
        return None


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
        if samples.stacked is not None and self.collate_fn is default_collate:
            return samples.stacked
        if self.collate_fn is not default_collate:
            key = samples.key
            rng.reseed(rng.mix(self.seed, key.epoch, key.index, _COLLATE))
        try:
            batch = self.collate_fn(list(samples))
        except Exception as error:
            raise SampleError(
                f"the batch that starts with sample {samples.key.index}{_where()}: "
                f"it cannot be put together: {cause_of(error)}{_remedy(error)}"
            ) from error
        if samples.skipped:
            return Fetched(batch=batch, skipped=samples.skipped)
        return batch


def _remedy(error: Exception) -> str:
    if "equal size" not in str(error):  # what torch says of samples to be stacked
        return ""
    return "; samples that differ in size are padded by data.buckets or a collate_fn"


def _failed(key: SampleKey | None, error: Exception) -> SampleError:
    what = "a batch" if key is None else f"sample {key.index}, epoch {key.epoch + 1}"
    return SampleError(f"{what}{_where()}: {cause_of(error)}")


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
    if type(dataset) is Subset:
        return reads_batches(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))
