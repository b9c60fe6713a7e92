"""`Limited`: the first batches of a loader, for dry runs and quick checks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

__all__ = ["Limited"]


class Limited:
    """`loader`, of which an epoch has at most `count` items."""

    def __init__(self, loader: Any, count: int) -> None:
        self._loader = loader
        self._count = count
        self._start = 0

    def __len__(self) -> int:
        return min(len(self._loader), self._count)

    def start_at(self, update: int) -> None:
        """The next iteration, and only that, begins at `update` of its epoch."""
        self._start = update

    def __iter__(self) -> Iterator[Any]:
        start, self._start = self._start, 0
        if start >= self._count:
            return iter(())
        if start:
            self._loader.start_at(start)
        return islice(self._loader, self._count - start)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)
