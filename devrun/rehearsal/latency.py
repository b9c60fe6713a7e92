"""Throughput against latency: one model's predictions, by batches of several sizes.

An emulator has no times; there it is counted how many graphs a size compiles, and how
many tensors a prediction moves between the host and the device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.devices.base import DeviceAdapter
from devrun.tensors import batch_size_of, map_tensors, tensors_in

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
    """One size of batch; what was not measured, or not counted, is None."""

    batch: int
    per_second: float | None = None
    """Samples."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    graphs: int | None = None
    """Compiled for this size."""
    transfers: int | None = None
    """Tensors of one prediction that went to the device or came from there."""
    knee: bool = False
    """The smallest batch of about the best throughput."""


def sweep(call: Call, batch: Any, sizes: Iterable[int]) -> list[Point]:
    """How long `call(batch)` takes, with `batch` made each of these sizes.

    A call has to end when its results are on the host.
    """
    return with_knee([_timed(call, sized(batch, size), size) for size in sizes])


def counted(
    call: Call, batch: Any, sizes: Iterable[int], adapter: DeviceAdapter
) -> list[Point]:
    """The same by what an emulated device counts."""
    points = []
    for size in sizes:
        given = sized(batch, size)
        before = _count(adapter, "graphs")
        call(given)
        graphs = _count(adapter, "graphs") - before
        moved = _count(adapter, "transfers")
        with _Copies() as copies:
            call(given)
        moved = _count(adapter, "transfers") - moved + copies.count
        points.append(Point(size, graphs=graphs, transfers=moved))
    return points


def sized(batch: Any, size: int) -> Any:
    """`batch` with so many samples; the first are taken again where it has fewer."""
    count = batch_size_of(batch)
    rows = torch.arange(size) % count

    def resized(value: torch.Tensor) -> torch.Tensor:
        return value[rows] if value.dim() and value.size(0) == count else value

    return map_tensors(resized, batch)


def on_host(outputs: Any) -> Any:
    """`outputs` read to the host, for which it waits."""
    return map_tensors(lambda value: value.cpu(), outputs)


def with_knee(points: Sequence[Point]) -> list[Point]:
    """The same, the knee marked."""
    best = max(point.per_second or 0.0 for point in points)
    knee = next(one for one in points if (one.per_second or 0.0) >= NEAR * best)
    return [replace(one, knee=one is knee) for one in points]


def rows(points: Sequence[Point]) -> list[list[str]]:
    """A table for the terminal, its titles first."""
    if points[0].per_second is None:
        counts = [[str(p.batch), str(p.graphs), str(p.transfers)] for p in points]
        return [["batch", "graphs", "transfers"], *counts]
    found = [["batch", "samples/s", "p50 ms", "p99 ms", ""]]
    for point in points:
        numbers = [point.per_second, point.p50_ms, point.p99_ms]
        told = [f"{number:.4g}" for number in numbers if number is not None]
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


def _count(adapter: DeviceAdapter, name: str) -> int:
    return int(adapter.stats().get(name, 0))


class _Copies(TorchDispatchMode):
    """Counts the tensors that operators copy from one kind of device to another."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            places = {one.device.type for one in tensors_in([*args, made])}
            self.count += len(places) > 1
        return made
