"""`IterLoader`: a data loader that starts its next epoch automatically."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from devrun.data.prepared import PreparedLoader
from devrun.data.streaming import StreamPosition
from devrun.data.timing import Clock
from devrun.errors import DataError, DevrunError

_NOTHING = object()


class IterLoader:
    """A data loader that starts its next epoch automatically.

    `epoch` counts the epochs completed, `done` the batches taken from this one.
    """

    def __init__(self, dataloader: Any) -> None:
        if not isinstance(dataloader, PreparedLoader):
            dataloader = PreparedLoader(dataloader)
        self._dataloader: PreparedLoader = dataloader
        self._iterator: Iterator[Any] | None = None
        self.dataset = dataloader.dataset
        self.epoch = 0
        self.done = 0

    @property
    def loader(self) -> Any:
        """The user's, or the one that was made of it."""
        return self._dataloader.loader

    @property
    def sampler(self) -> Any:
        return self._dataloader.sampler

    @property
    def batch_sampler(self) -> Any:
        return self._dataloader.batch_sampler

    @property
    def batch_size(self) -> int | None:
        return self._dataloader.batch_size

    @property
    def samples_per_update(self) -> int | None:
        """Those of the loader inside."""
        return self._dataloader.samples_per_update

    def __len__(self) -> int:
        return len(self._dataloader)

    @property
    def stream(self) -> StreamPosition | None:
        """That of the loader inside."""
        return self._dataloader.stream

    @property
    def clock(self) -> Clock:
        """That of the loader inside."""
        return self._dataloader.clock

    @clock.setter
    def clock(self, clock: Clock) -> None:
        self._dataloader.clock = clock

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`, unless this is it."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.start_at(0)

    def start_at(self, update: int) -> None:
        """Go to `update` of this epoch."""
        self.done, self._iterator = update, None

    def open(self) -> Iterator[Any]:
        """The iterator of the present epoch, which begins at `done`."""
        if self._iterator is None:
            self._dataloader.set_epoch(self.epoch)
            if self.done:
                self._dataloader.start_at(self.done)
            self._iterator = iter(self._dataloader)
        return self._iterator

    def __next__(self) -> Any:
        try:
            batch = next(self.open())
        except StopIteration:
            self.set_epoch(self.epoch + 1)
            batch = next(self.open(), _NOTHING)
            if batch is _NOTHING:
                raise DataError(
                    f"the data loader yielded nothing in epoch {self.epoch + 1}: one "
                    "that is read once cannot start again; give it a new iterator in "
                    "each __iter__"
                ) from None
        self.done += 1
        return batch

    def __iter__(self) -> Iterator[Any]:
        return self

    def close(self) -> None:
        """End the workers of the loader inside."""
        self._dataloader.close()

    def explain(self, error: BaseException) -> DevrunError | None:
        """What a dead or silent worker means; see `PreparedLoader`."""
        return self._dataloader.explain(error)
