"""`IterLoader`: a data loader that starts its next epoch automatically."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from devrun.errors import DataError

__all__ = ["IterLoader"]

_NOTHING = object()


class IterLoader:
    """A data loader that starts its next epoch automatically.

    `epoch` counts the epochs completed, `done` the batches taken from this one.
    """

    def __init__(self, dataloader: Any) -> None:
        self._dataloader = dataloader
        self._iterator: Iterator[Any] | None = None
        self.epoch = 0
        self.done = 0

    def __len__(self) -> int:
        return len(self._dataloader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._dataloader, name)

    def open(self) -> Iterator[Any]:
        """The iterator of the present epoch, which begins at `done`."""
        if self._iterator is not None:
            return self._iterator
        if hasattr(self._dataloader, "set_epoch"):
            self._dataloader.set_epoch(self.epoch)
        if self.done:
            self._dataloader.start_at(self.done)
        self._iterator = iter(self._dataloader)
        return self._iterator

    def __next__(self) -> Any:
        try:
            batch = next(self.open())
        except StopIteration:
            self.epoch, self.done, self._iterator = self.epoch + 1, 0, None
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
