"""What a device really reaches: matrix products and memory, by measuring them.

Nothing is looked up in a data sheet. The cases take turns, and what counts is the
median over the rounds: the best of many is what a shared machine never gives again.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from devrun.devices.base import DeviceAdapter
from devrun.dist import all_reduce_max, get_dist_info
from devrun.errors import UnsupportedFeatureError
from devrun.files import replace_text, user_path
from devrun.text import one_line

SCHEMA = "devrun.peaks/2"
DTYPES = {"fp64": torch.float64, "fp32": torch.float32,
          "bf16": torch.bfloat16, "fp16": torch.float16}  # fmt: skip
ROUNDS = 5
"""Turns that each case has."""
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
    """One case: the median of the rounds with the quartiles beside it, in `unit`."""

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


def measure(adapter: DeviceAdapter, *, seconds: float = 10.0) -> Peaks:
    """Measure the device of `adapter`, set up, for about `seconds`.

    Raises:
        UnsupportedFeatureError: an emulated device, or one that runs only whole graphs.
    """
    device = getattr(adapter, "device", None)
    if adapter.emulated or not isinstance(device, torch.device):
        raise UnsupportedFeatureError(
            f"{adapter.name} is emulated here or runs whole graphs, which says nothing "
            "about the speed of an operation; measure where the device is"
        )
    own = not getattr(adapter, "host_shared", False)
    measured, left_out = _run(list(cases(device, own_memory=own)), seconds)
    if get_dist_info()[1] == 1:
        left_out.append("all_reduce: one process; start it with torchrun for more")
    return Peaks(
        device=str(device),
        description=describe(adapter),
        versions={"torch": str(torch.__version__)},
        threads=torch.get_num_threads(),
        measured=measured,
        left_out=left_out,
    )


def describe(adapter: Any) -> str:
    """The name of the hardware, by which results are told apart."""
    infos = adapter.list_devices()
    return str(infos[adapter.device.index or 0].name if infos else adapter.name)


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
    world = get_dist_info()[1]
    for count in (1 << 18, 1 << 24) if world > 1 else ():
        words = f"{count * 4 >> 20} MiB over {world} processes"
        # bus bandwidth, as nccl-tests count it
        work = 4.0 * count * 2 * (world - 1) / world
        make = partial(draw, dist.all_reduce, (count,))
        yield Case("all_reduce", "fp32", words, work, make)


def _drawn(
    device: torch.device, call: Any, *shapes: Any, dtype: torch.dtype = torch.float32
) -> Callable[[], Any]:
    """`call` of random tensors: zeros would draw less power."""
    return partial(call, *(torch.randn(s, device=device).to(dtype) for s in shapes))


def _triad(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """STREAM's: three values of each are moved."""
    torch.add(b, c, alpha=3.0, out=a)


def _run(found: Sequence[Case], seconds: float) -> tuple[list[Measured], list[str]]:
    """What each case reaches, and what could not be run, with the reason.

    The cases take turns. Everything is decided by the time of the slowest process: all
    are to run a collective as often.
    """
    # here, as what reads a result that was kept need not wait 0.1 s for it
    from torch.utils.benchmark import Timer

    threads = torch.get_num_threads()
    timers, failed = {}, []
    for case in found:
        why = "failed in another process"
        try:
            run = case.make()
            run()  # compiles, allocates and picks algorithms
            timer = Timer("run()", globals={"run": run}, num_threads=threads)
            once = timer.timeit(1).median
        except (RuntimeError, TypeError) as error:
            once, why = math.inf, one_line(error)[:120]
        once = all_reduce_max(once)
        if once > SLOW:
            why = why if math.isinf(once) else f"over {SLOW} s each"
            failed.append(f"{case.kind} {case.dtype} {case.shape}: {why}")
        else:
            number = int(seconds / ROUNDS / len(found) / max(once, 1e-7))
            timers[case] = timer, min(max(number, 1), 1 << 16)
    times: dict[Case, list[float]] = {case: [] for case in timers}
    for _ in range(ROUNDS):
        for case, (timer, number) in timers.items():
            times[case].append(timer.timeit(number).median)
    return [_judged(case, each) for case, each in times.items()], failed


def _judged(case: Case, times: Sequence[float]) -> Measured:
    unit = "GFLOP/s" if case.kind == "matmul" else "GB/s"
    rates = [case.work / each / 1e9 for each in times]
    low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
    return Measured(case.kind, case.dtype, case.shape, median, low, high, unit)


def save(peaks: Peaks) -> Path:
    """Keep the result for forecasts of this device; where it is."""
    path = _place(peaks.description)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(asdict(peaks), indent=2) + "\n")
    return path


def load(adapter: DeviceAdapter) -> Peaks | None:
    """The result kept for the device of `adapter`; None without one."""
    try:
        data = json.loads(_place(describe(adapter)).read_text(encoding="utf-8"))
        measured = [Measured(**entry) for entry in data.pop("measured")]
        peaks = Peaks(measured=measured, **data)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None  # such as a device of whole graphs, or a damaged file
    return peaks if peaks.schema == SCHEMA else None


def _place(description: str) -> Path:
    """Of what the hardware reaches with this torch and as many threads."""
    root = os.environ.get("XDG_CACHE_HOME") or user_path("~/.cache")
    threads = torch.get_num_threads()
    words = f"{description} torch {torch.__version__} threads {threads}"
    name = "".join(c if c.isalnum() or c in ".+-" else "_" for c in words)
    return Path(root) / "devrun" / "peaks" / f"{name}.json"
