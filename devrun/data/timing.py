"""Where the time of a training goes, as far as loops and loaders know it.

`Clock` is written by the loop and by the loader of its training data; `IterTimerHook`
reads it. Transforms are timed in one sample of many, by watching what is called:
nothing is put in their place, so a data set behaves in that sample as in all others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

EVERY = 32
"""Batches of a worker, of one of which the first sample is watched."""
_DEPTH = 4
_INNER = (
    "dataset", "datasets", "pipeline", "transform", "transforms", "target_transform",
)  # fmt: skip
"""Attributes of data sets, and of what is around them, in which transforms are."""


@dataclass
class Clock:
    """Seconds of this process so far: host time, of training alone.

    Attributes:
        data: waiting for batches.
        copy: bringing them to the device.
        compute: in the step itself: forward, backward and the update; and waiting for
            what a device still has to do of it.
        samples: those that were watched, and `parts`: their seconds by transform; ""
            has what is in none of them, such as reading a file.
    """

    data: float = 0.0
    copy: float = 0.0
    compute: float = 0.0
    samples: int = 0
    parts: dict[str, float] = field(default_factory=dict)
    _lap: tuple[int, float, float, float] = (0, 0.0, 0.0, 0.0)

    def settle(self, synchronize: Callable[[], None]) -> None:
        """Wait for a device that works in the background: what it does is computing."""
        began = perf_counter()
        synchronize()
        self.compute += perf_counter() - began

    def lap(self, updates: int) -> dict[str, float]:
        """Mean seconds of an update since the last lap; empty where there was none.

        Args:
            updates: done by now.
        """
        last, self._lap = self._lap, (updates, self.data, self.copy, self.compute)
        done, *spent = (now - then for now, then in zip(self._lap, last, strict=True))
        names = ("wait_time", "copy_time", "compute_time")
        return {n: s / done for n, s in zip(names, spent, strict=True) if done > 0}

    def note(self, parts: dict[str, float]) -> None:
        """Add a watched sample."""
        self.samples += 1
        for name, seconds in parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + seconds


def transforms_of(dataset: Any) -> list[Any]:
    """What is called on each sample of `dataset`, as far as it shows; maybe nothing."""
    found: dict[int, Any] = {}

    def look(value: Any, depth: int) -> None:
        if isinstance(value, (list, tuple)):
            for entry in value:
                look(entry, depth)
            return
        own = getattr(value, "__dict__", {})
        inner = [own[name] for name in _INNER if own.get(name) is not None]
        if inner and depth:
            for entry in inner:
                look(entry, depth - 1)
        elif callable(value) and value is not dataset:
            found[id(value)] = value

    look(dataset, _DEPTH)
    return list(found.values())


@contextmanager
def watched(transforms: list[Any]) -> Iterator[dict[str, float]]:
    """Seconds by transform of what is called inside, and "" for the rest.

    Empty where something else, such as a profiler, watches already.
    """
    spent: dict[str, float] = {}
    if sys.getprofile() is not None:
        yield spent
        return
    watch = _watch(transforms, spent)
    began = perf_counter()
    sys.setprofile(watch)
    try:
        yield spent
    finally:
        sys.setprofile(None)
        rest = perf_counter() - began - sum(spent.values())
        spent[""] = max(rest, 0.0)


def _watch(
    transforms: list[Any], spent: dict[str, float]
) -> Callable[[Any, str, Any], None]:
    known = {id(transform): transform for transform in transforms}
    codes = {
        transform.__code__: transform
        for transform in transforms
        if hasattr(transform, "__code__")
    }
    running: list[tuple[Any, Any, float]] = []

    def watch(frame: Any, event: str, argument: Any) -> None:
        if event == "return":
            if running and running[0][0] is frame:
                _, transform, began = running.pop()
                name = getattr(transform, "__name__", type(transform).__name__)
                spent[name] = spent.get(name, 0.0) + perf_counter() - began
        elif event == "call" and not running:
            code = frame.f_code
            transform = codes.get(code)
            if transform is None and code.co_argcount:
                first = frame.f_locals.get(code.co_varnames[0])
                transform = known.get(id(first))
            if transform is not None:
                running.append((frame, transform, perf_counter()))

    return watch
