"""What a device really reaches: matrix products and memory, by measuring them.

Nothing is looked up in a data sheet. What counts is the median: the best of many is
what a shared machine never gives again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from devrun.devices.base import DeviceAdapter
from devrun.errors import UnsupportedFeatureError
from devrun.text import one_line

SCHEMA = "devrun.peaks/2"
DTYPES = {"fp64": torch.float64, "fp32": torch.float32,
          "bf16": torch.bfloat16, "fp16": torch.float16}  # fmt: skip
ROUNDS, SECONDS = 5, 0.5
"""Measurements of a case, and what they take together, about."""
SLOW = 0.25
"""Seconds; what takes longer by itself would take the time of all others."""


@dataclass(frozen=True)
class Case:
    """One operation: FLOP or bytes of a run, and what draws tensors and gives a run."""

    kind: str
    dtype: str
    shape: str
    work: float
    make: Callable[[], Callable[[], Any]]


@dataclass(frozen=True)
class Measured:
    """One case: the median of its rounds with the quartiles beside it, in `unit`."""

    kind: str
    dtype: str
    shape: str
    median: float
    low: float
    high: float
    unit: str


@dataclass(frozen=True)
class Peaks:
    """The result of `measure`; `left_out` is what could not be measured, and why."""

    device: str
    description: str
    versions: dict[str, str]
    threads: int
    measured: list[Measured]
    left_out: list[str]
    schema: str = SCHEMA


def measure(adapter: DeviceAdapter) -> Peaks:
    """Measure the device of `adapter`, set up.

    Raises:
        UnsupportedFeatureError: an emulated device, or one that runs only whole graphs.
    """
    device = getattr(adapter, "device", None)
    if adapter.emulated or not isinstance(device, torch.device):
        raise UnsupportedFeatureError(
            f"{adapter.name} is emulated here or runs whole graphs, which says nothing "
            "about the speed of an operation; measure where the device is"
        )
    infos = adapter.list_devices()
    own = not getattr(adapter, "host_shared", False)
    measured: list[Measured] = []
    left_out: list[str] = []
    for case in cases(device, own_memory=own):
        try:
            measured.append(_measured(case))
        except (RuntimeError, TypeError) as error:
            why = one_line(error)[:120]
            left_out.append(f"{case.kind} {case.dtype} {case.shape}: {why}")
    return Peaks(
        device=str(device),
        description=str(infos[device.index or 0].name if infos else adapter.name),
        versions={"torch": str(torch.__version__)},
        threads=torch.get_num_threads(),
        measured=measured,
        left_out=left_out,
    )


def cases(device: torch.device, *, own_memory: bool) -> Iterator[Case]:
    """What is measured on `device`; one with a memory of its own is fed larger work."""
    draw = partial(_drawn, device)
    sides = (1024, 4096, 8192) if own_memory else (256, 1024)
    # besides squares an odd size, and many small ones
    shapes = [*((1, n, n, n) for n in sides), (1, 1000, 1001, 1000), (64, 128, 64, 128)]
    for name, dtype in DTYPES.items():
        for batch, m, k, n in shapes:
            words = f"{m}x{k} by {k}x{n}" + f", {batch} of them" * (batch > 1)
            make = partial(draw, torch.bmm, (batch, m, k), (batch, k, n), dtype=dtype)
            yield Case("matmul", name, words, 2.0 * batch * m * k * n, make)
    count = 1 << (28 if own_memory else 25)  # far more than the caches hold
    words = f"triad over {count * 4 >> 20} MiB arrays"
    arrays = partial(draw, _triad, *[(count,)] * 3)
    yield Case("memory", "fp32", words, 12.0 * count, arrays)


def _drawn(
    device: torch.device, call: Any, *shapes: Any, dtype: torch.dtype = torch.float32
) -> Callable[[], Any]:
    """`call` of random tensors: zeros would draw less power."""
    return partial(call, *(torch.randn(s, device=device).to(dtype) for s in shapes))


def _triad(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """STREAM's: three values of each are moved."""
    torch.add(b, c, alpha=3.0, out=a)


def _measured(case: Case) -> Measured:
    """What `case` reaches.

    Raises:
        RuntimeError: the device cannot do it, or takes too long.
        TypeError: the device has no such type.
    """
    from torch.utils.benchmark import Timer

    run = case.make()
    run()  # compiles, allocates and picks algorithms
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    once = timer.timeit(1).median
    if once > SLOW:
        raise RuntimeError(f"over {SLOW} s each")
    number = max(int(SECONDS / ROUNDS / once), 1)
    times = [timer.timeit(number).median for _ in range(ROUNDS)]
    rates = [case.work / each / 1e9 for each in times]
    low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
    unit = "GFLOP/s" if case.kind == "matmul" else "GB/s"
    return Measured(case.kind, case.dtype, case.shape, median, low, high, unit)
