"""`PreparedLoader`: what the runner iterates, one item per optimizer update."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from devrun.data import workers
from devrun.data.sampler import EpochBatchSampler, KeyedBatchSampler
from devrun.data.seeded import Fetched, SampleError, SeededDataset, summary
from devrun.errors import ConfigError, DataError, DevrunError, HangError
from devrun.step import MicroBatches

__all__ = ["PreparedLoader"]

logger = logging.getLogger("devrun")


class PreparedLoader:
    """`loader` with every item being one update's data, startable at any update.

    Args:
        loader: any iterable of batches; resumable by position if `make_resumable`
            gave it, otherwise by reading and dropping what comes before.
        accumulate: batches of one update; above 1 the items are `MicroBatches`
            lists, the last of an epoch possibly shorter.
        transfer: called on every batch, such as to copy it to a device. With
            `lookahead` n it runs n items ahead of the one that is handed out.
        receive: called on an item just before it is handed out, such as to wait for
            the copy that `transfer` began.
        max_skipped: distinct samples that may fail under the policy "skip" before
            the run stops; by default a thousandth of the data set, but at least 10.

    Every attribute not found here is the wrapped loader's.
    """

    def __init__(
        self,
        loader: Any,
        *,
        accumulate: int = 1,
        transfer: Callable[[Any], Any] | None = None,
        receive: Callable[[Any], Any] | None = None,
        lookahead: int = 0,
        max_skipped: int | None = None,
    ) -> None:
        if accumulate < 1:
            raise ConfigError(f"accumulate must be at least 1, got {accumulate}")
        self.loader = loader
        self.accumulate = accumulate
        self.skipped: dict[Any, str] = {}
        """Samples left out so far, by index, and why."""
        self._transfer, self._receive = transfer, receive
        self._lookahead = lookahead
        self._max_skipped = max_skipped
        self._skip = 0
        self._iterator: Any = None
        self._epitaph: str | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in vars(self):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Updates per epoch."""
        return -(-len(self.loader) // self.accumulate)

    @property
    def dataset(self) -> Any:
        """The user's data set."""
        dataset = self.loader.dataset
        return dataset.dataset if isinstance(dataset, SeededDataset) else dataset

    @property
    def sampler(self) -> Any:
        """What decides the order; it has `set_epoch` if the order has epochs."""
        return self._keyed_sampler or self.loader.sampler

    @property
    def batch_size(self) -> int | None:
        """Samples of one batch of this process; None if the loader does not say."""
        sampler = self._keyed_sampler
        size = getattr(self.loader if sampler is None else sampler, "batch_size", None)
        return None if size is None else int(size)

    @property
    def drop_last(self) -> bool:
        sampler = self._keyed_sampler
        return bool(self.loader.drop_last if sampler is None else sampler.drop_last)

    @property
    def samples_per_update(self) -> int | None:
        """Samples of one update over all processes; None if it is not known.

        A position is saved as updates times this, in global samples.
        """
        sampler = self._keyed_sampler
        if isinstance(sampler, EpochBatchSampler):
            return sampler.global_batch_size * self.accumulate
        return None

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of `epoch`."""
        loader = self.loader
        if callable(getattr(loader, "set_epoch", None)):
            loader.set_epoch(epoch)
            return
        for name in ("batch_sampler", "sampler", "dataset"):
            owner: Any = getattr(loader, name, None)
            if callable(getattr(owner, "set_epoch", None)):
                owner.set_epoch(epoch)

    def start_at(self, update: int) -> None:
        """The next iteration, and only that, begins at `update` of its epoch.

        Raises:
            ConfigError: the epoch has fewer updates.
        """
        batches = self._num_batches()
        skip = update * self.accumulate
        if batches is not None:
            if not 0 <= update <= len(self):
                raise ConfigError(
                    f"cannot start at update {update} of an epoch of {len(self)}; "
                    "were the data set or the batch size changed since the save?"
                )
            skip = min(skip, batches)  # the last update may have fewer batches
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        skip, self._skip = self._skip, 0
        sampler = self._keyed_sampler
        if skip and sampler is not None:
            sampler.start_at(skip)
            skip = 0
        items = self._read(self._opened(skip))
        if self.accumulate > 1:
            items = self._grouped(items)
        elif self._transfer is not None:
            items = map(self._transfer, items)
        if self._lookahead:
            items = _ahead(items, self._lookahead)
        return items if self._receive is None else map(self._receive, items)

    def close(self) -> None:
        """End the workers of an epoch broken off, and those that outlive epochs."""
        self._abandon(self._iterator)
        self._abandon(getattr(self.loader, "_iterator", None))

    def explain(self, error: BaseException) -> DevrunError | None:
        """What a dead or silent worker means, if that is what `error` tells of.

        torch reports a death wherever the main process happens to be, so the error
        may come out of a training step as well as out of this loader.
        """
        if not isinstance(error, RuntimeError):
            return None
        text = str(error)
        if text.startswith("DataLoader timed out"):
            pids = ", ".join(map(str, workers.pids(self._iterator)))
            return HangError(
                f"no batch within {self.loader.timeout:g} s from the loader's workers "
                f"(pids {pids}); a sample hangs, or `timeout` is too short"
            )
        if text.startswith("DataLoader worker") and (
            dead := workers.describe_dead(self._iterator) or self._epitaph
        ):
            memory = "SIGKILL" in dead or "SIGBUS" in dead
            hint = "; is memory or /dev/shm short?" if memory else ""
            return DataError(f"data loading stopped: {dead}{hint}")
        return None

    @property
    def _keyed_sampler(self) -> Any:
        sampler = getattr(self.loader, "batch_sampler", None)
        known = isinstance(sampler, (EpochBatchSampler, KeyedBatchSampler))
        return sampler if known else None

    def _num_batches(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:  # an iterable that does not know
            return None

    def _opened(self, skip: int) -> Any:
        """An iterator of the loader past its first `skip` batches.

        Opened before the first batch is asked for: what this draws from the global
        streams is drawn when a resumed run puts them back.
        """
        iterator = self._iterator = self._guarded(iter, self.loader)
        for _ in range(skip):
            self._guarded(next, iterator, None)
        return iterator

    def _read(self, iterator: Any) -> Iterator[Any]:
        """The batches left, with the loader's failures as one line each."""
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    failure = self._as_data_error(error)
                    self._abandon(iterator)
                    raise failure from error
                yield self._open(batch) if type(batch) is Fetched else batch
        except GeneratorExit:
            # left in the middle, perhaps by a death that torch reported elsewhere
            self._epitaph = workers.describe_dead(iterator)
            raise
        finally:
            if self._iterator is iterator:
                self._iterator = None  # lets the workers of a broken-off epoch go

    def _abandon(self, iterator: Any) -> None:
        """End the workers while the error is fresh: garbage collection, which breaks
        their queues before it closes them, would take seconds over each."""
        abandon = getattr(self.loader, "abandon", None)
        if abandon is not None:
            abandon(iterator)

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:
            raise self._as_data_error(error) from error

    def _as_data_error(self, error: Exception) -> DevrunError:
        if (explained := self.explain(error)) is not None:
            return explained
        if isinstance(error, SampleError):
            # from a worker the text is a traceback that ends with the message
            line = summary(error).rpartition("SampleError: ")[2]
            return DataError(f"data loading failed at {line}")
        if isinstance(error, DevrunError):
            return error
        return DataError(f"data loading failed: {summary(error)}")

    def _open(self, fetched: Fetched) -> Any:
        for index, why in fetched["skipped"]:
            if index not in self.skipped:
                self.skipped[index] = why
                logger.warning(
                    "sample %s left out (%d so far): %s", index, len(self.skipped), why
                )
        limit = self._max_skipped
        if limit is None:
            limit = getattr(self.loader, "max_skipped", None)
        if limit is None:
            limit = max(10, len(self.dataset) // 1000)
        if len(self.skipped) > limit:
            raise DataError(
                f"{len(self.skipped)} samples could not be read, {limit} may be left "
                f"out (max_skipped); the last: sample {index}: {why}"
            )
        return fetched["batch"]

    def _grouped(self, batches: Iterable[Any]) -> Iterator[MicroBatches]:
        batches = iter(batches)
        while group := MicroBatches(islice(batches, self.accumulate)):
            if self._transfer is not None:
                group[:] = map(self._transfer, group)
            yield group


def _ahead(items: Iterable[Any], count: int) -> Iterator[Any]:
    """`items`, each handed out when the `count` after it have been fetched."""
    held: deque[Any] = deque()
    for item in items:
        held.append(item)
        if len(held) > count:
            yield held.popleft()
    yield from held
