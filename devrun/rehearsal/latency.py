"""Throughput against latency: one model's predictions, by batches of several sizes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from devrun.tensors import batch_size_of, map_tensors

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
WARM = 3
"""Calls that do not count."""
CALLS = (20, 500)
"""Of a size at least, even where they take long, and at most."""
SECONDS = 1.0
"""For a size, about."""
NEAR = 0.9
"""Of the best throughput, at which a larger batch buys little but latency."""

Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Point:
    """One size of batch."""

    batch: int
    per_second: float
    """Samples."""
    p50_ms: float
    p99_ms: float
    knee: bool = False
    """The smallest batch of about the best throughput."""


def sweep(call: Call, batch: Any, sizes: Iterable[int]) -> list[Point]:
    """How long `call(batch)` takes, with `batch` made each of these sizes.

    A call has to end when its results are on the host.
    """
    points = [_timed(call, sized(batch, size), size) for size in sizes]
    best = max(point.per_second for point in points)
    knee = next(one for one in points if one.per_second >= NEAR * best)
    return [replace(one, knee=one is knee) for one in points]


def sized(batch: Any, size: int) -> Any:
    """`batch` with so many samples; the first are taken again where it has fewer."""
    count = batch_size_of(batch)
    rows = torch.arange(size) % count

    def resized(value: torch.Tensor) -> torch.Tensor:
        return value[rows] if value.dim() and value.size(0) == count else value

    return map_tensors(resized, batch)


def rows(points: Sequence[Point]) -> list[list[str]]:
    """A table for the terminal, its titles first."""
    found = [["batch", "samples/s", "p50 ms", "p99 ms", ""]]
    for point in points:
        numbers = (point.per_second, point.p50_ms, point.p99_ms)
        told = [f"{number:.4g}" for number in numbers]
        found.append([str(point.batch), *told, "knee" if point.knee else ""])
    return found


def _timed(call: Call, batch: Any, size: int) -> Point:
    for _ in range(WARM):
        call(batch)
    least, most = CALLS
    times: list[float] = []
    while len(times) < most and (len(times) < least or sum(times) < SECONDS):
        began = perf_counter()
        call(batch)
        times.append(perf_counter() - began)
    times.sort()
    slowest = times[math.ceil(0.99 * len(times)) - 1]
    middle = statistics.median(times)  # a mean has what other programs did meanwhile
    return Point(
        size,
        per_second=size / middle,
        p50_ms=1000 * middle,
        p99_ms=1000 * slowest,
    )
