"""What a device really reaches: products, convolutions, copies, by measuring them.

Nothing is looked up in a data sheet. The cases take turns, and what counts is the
median over the rounds: the best of many is what a shared machine never gives again.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from devrun.checkpoint import fileops
from devrun.devices.base import DeviceAdapter
from devrun.dist import all_reduce_max
from devrun.errors import UnsupportedFeatureError
from devrun.files import replace_text, user_path
from devrun.rehearsal.shares import finite
from devrun.text import one_line

SCHEMA = "devrun.peaks/1"
DTYPES = {"fp64": torch.float64, "fp32": torch.float32,
          "bf16": torch.bfloat16, "fp16": torch.float16}  # fmt: skip
ROUNDS = 5
"""Turns that each case has."""
SLOW = 0.25
"""Seconds; what takes longer by itself would take the time of all others."""
_CONVOLUTIONS = (
    ((16, 64, 56, 56), (64, 64, 3, 3)),
    ((16, 256, 28, 28), (256, 256, 1, 1)),
    ((8, 3, 224, 224), (64, 3, 7, 7)),
)
"""Shapes of input and weight."""


@dataclass(frozen=True)
class Case:
    """One operation.

    `work` is what one run of it does, in FLOP or bytes; 1 where its time is asked for.
    `make` draws its tensors and gives what runs it.
    """

    kind: str
    dtype: str
    shape: str
    work: float
    unit: str
    make: Callable[[], Callable[[], Any]]


@dataclass(frozen=True)
class Measured:
    """One case.

    Attributes:
        kind: `matmul`, `conv`, `attention`, `memory`, `copy`, `all_reduce`, `launch`.
        dtype: such as `fp32` or `bf16`.
        shape: in words.
        median, low, high: of the rounds, the quartiles beside the median, in `unit`.
        unit: `GFLOP/s`, `GB/s` or `us`.
        share: of the best of its kind and dtype; 1.0 is the best.
    """

    kind: str
    dtype: str
    shape: str
    median: float
    low: float
    high: float
    unit: str
    share: float


@dataclass(frozen=True)
class Peaks:
    """The result of `measure`.

    `left_out` has what could not be measured, and why.
    """

    device: str
    description: str
    versions: dict[str, str]
    threads: int
    measured: list[Measured]
    left_out: list[str]
    schema: str = SCHEMA

    def peak(self, dtype: str) -> float | None:
        """The best matrix product of `dtype`, GFLOP/s; None if none was measured."""
        wanted = "matmul", dtype
        found = [m.median for m in self.measured if (m.kind, m.dtype) == wanted]
        return max(found, default=None)


def measure(adapter: DeviceAdapter, *, seconds: float = 20.0) -> Peaks:
    """Measure the device of `adapter`, set up, for about `seconds`.

    Args:
        adapter: one that computes operation by operation; an emulated one says
            nothing about speed.
        seconds: of measuring; every case has five rounds of one run at least.

    Raises:
        UnsupportedFeatureError: an emulated device, or one that runs only whole graphs.
    """
    if adapter.emulated:
        raise UnsupportedFeatureError(
            f"{adapter.name} is emulated here, and emulators say nothing about speed; "
            "measure where the device is"
        )
    device = getattr(adapter, "device", None)
    if not isinstance(device, torch.device):
        raise UnsupportedFeatureError(
            f"{adapter.name} runs whole graphs, no single operations to be measured"
        )
    infos = adapter.list_devices()
    dtypes = infos[device.index or 0].dtypes if infos else ()
    own = not getattr(adapter, "host_shared", False)
    left_out = [] if own else ["copies: the device's memory is the host's"]
    if not _several():
        left_out.append("all_reduce: one process; start it with torchrun for more")
    found = list(cases(device, "tf32" in dtypes, own_memory=own))
    rates, failed = _rates(found, seconds)
    return Peaks(
        device=str(device),
        description=describe(adapter, device),
        versions={"torch": str(torch.__version__)},
        threads=torch.get_num_threads(),
        measured=_judged(rates),
        left_out=[*left_out, *failed],
    )


def describe(adapter: DeviceAdapter, device: torch.device) -> str:
    """The name of the hardware, by which results are told apart."""
    infos = adapter.list_devices()
    return infos[device.index or 0].name if infos else adapter.name


def cases(device: torch.device, tf32: bool, *, own_memory: bool) -> Iterator[Case]:
    """What is measured on `device`.

    Args:
        own_memory: whether it has memory apart from the host's, and is fed larger work.
    """
    for name, dtype in DTYPES.items():
        yield from _products(device, name, dtype, own_memory)
        if name == "fp32" and tf32:
            for case in _products(device, name, dtype, own_memory, _as_tf32):
                yield replace(case, dtype="tf32")
        if dtype is not torch.float64:
            yield from _layers(device, name, dtype)
    draw = partial(_drawn, device, torch.float32)
    count = 1 << (28 if own_memory else 25)  # far more than the caches hold
    words = f"triad over {count * 4 >> 20} MiB arrays"
    arrays = partial(draw, _triad, *[(count,)] * 3)
    yield Case("memory", "fp32", words, 12.0 * count, "GB/s", arrays)
    one = partial(draw, torch.add, (1,), (1,))
    yield Case("launch", "fp32", "one addition", 1.0, "us", one)
    if own_memory:
        for words in ("pageable", "pinned"):
            copy = partial(_copy, device, 1 << 26, words == "pinned")
            work = 4.0 * (1 << 26)
            yield Case("copy", "fp32", f"from {words} memory", work, "GB/s", copy)
    for count in (1 << 18, 1 << 24) if _several() else ():
        world = dist.get_world_size()
        words = f"{count * 4 >> 20} MiB over {world} processes"
        # bus bandwidth, as nccl-tests count it
        work = 4.0 * count * 2 * (world - 1) / world
        reduced = partial(draw, dist.all_reduce, (count,))
        yield Case("all_reduce", "fp32", words, work, "GB/s", reduced)


def _several() -> bool:
    started = dist.is_available() and dist.is_initialized()
    return started and dist.get_world_size() > 1


def _drawn(
    device: torch.device,
    dtype: torch.dtype,
    call: Callable[..., Any],
    *shapes: tuple[int, ...],
    layout: torch.memory_format = torch.contiguous_format,
) -> Callable[[], Any]:
    """`call` of random tensors: zeros would draw less power."""
    given = [torch.randn(shape, device=device).to(dtype) for shape in shapes]
    return partial(call, *(one.to(memory_format=layout) for one in given))


def _products(
    device: torch.device,
    name: str,
    dtype: torch.dtype,
    large: bool,
    call: Callable[..., Any] = torch.bmm,
) -> Iterator[Case]:
    """Square matrices for a GPU or for a CPU, an odd size, and many small ones."""
    sides = (1024, 4096, 8192) if large else (256, 1024)
    shapes = [(1, side, side, side) for side in sides]
    for batch, m, k, n in [*shapes, (1, 1000, 1001, 1000), (64, 128, 64, 128)]:
        words = f"{m}x{k} by {k}x{n}" + f", {batch} of them" * (batch > 1)
        run = partial(_drawn, device, dtype, call, (batch, m, k), (batch, k, n))
        yield Case("matmul", name, words, 2.0 * batch * m * k * n, "GFLOP/s", run)


def _as_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return torch.bmm(a, b)
    finally:
        torch.set_float32_matmul_precision(before)


def _layers(device: torch.device, name: str, dtype: torch.dtype) -> Iterator[Case]:
    """Convolutions in both layouts, and causal attention."""
    draw = partial(_drawn, device, dtype)
    for shape, weight in _CONVOLUTIONS:
        (batch, channels, height, width), size = shape, weight[2]
        words = f"{size}x{size}, {channels} to {weight[0]} channels, {height}x{width}"
        # of each output: a product and a sum for each weight of its channel
        work = 2.0 * batch * height * width * math.prod(weight)
        call = partial(F.conv2d, padding=size // 2)
        for layout in (torch.contiguous_format, torch.channels_last):
            run = partial(draw, call, shape, weight, layout=layout)
            last = ", channels last" * (layout is torch.channels_last)
            yield Case("conv", name, words + last, work, "GFLOP/s", run)
    batch, heads, length, width = shape = (4, 8, 512, 64)
    # two products, of which the mask leaves half
    work = 2.0 * batch * heads * length * length * width
    call = partial(F.scaled_dot_product_attention, is_causal=True)
    words = f"causal, {heads} heads of {width}, {length} tokens, batch {batch}"
    run = partial(draw, call, shape, shape, shape)
    yield Case("attention", name, words, work, "GFLOP/s", run)


def _triad(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """STREAM's: three values of each are moved."""
    torch.add(b, c, alpha=3.0, out=a)


def _copy(device: torch.device, count: int, pinned: bool) -> Callable[[], Any]:
    there = torch.empty(count, device=device)
    here = torch.rand(count, pin_memory=pinned)
    return partial(there.copy_, here, non_blocking=pinned)


def _rates(
    found: Sequence[Case], seconds: float
) -> tuple[dict[Case, list[float]], list[str]]:
    """The rate of each case in each round, and what could not be run, with the reason.

    The cases take turns. Everything is decided by the time of the slowest process: all
    are to run a collective as often.
    """
    # here, as what reads a result that was kept need not wait 0.1 s for it
    from torch.utils.benchmark import Timer

    threads = torch.get_num_threads()
    rates: dict[Case, list[float]] = {}
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
            share = seconds / ROUNDS / len(found)
            timers[case] = timer, min(max(int(share / max(once, 1e-7)), 1), 1 << 16)
    for _ in range(ROUNDS):
        for case, (timer, number) in timers.items():
            rate = case.work / timer.timeit(number).median
            rates.setdefault(case, []).append(rate)
    return rates, failed


def _judged(rates: Mapping[Case, list[float]]) -> list[Measured]:
    best: dict[tuple[str, str], float] = {}
    rows = []
    for case, values in rates.items():
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        key = case.kind, case.dtype
        best[key] = max(best.get(key, 0.0), median)
        rows.append((case, median, low, high))
    measured = []
    for case, median, low, high in rows:
        share = median / best[case.kind, case.dtype]
        shown = (median / 1e9, low / 1e9, high / 1e9)
        if case.unit == "us":  # a time, made of a rate
            shown = (1e6 / median, 1e6 / high, 1e6 / low)
        named = case.kind, case.dtype, case.shape
        measured.append(Measured(*named, *shown, case.unit, share))
    return measured


def save(peaks: Peaks) -> Path:
    """Keep the result for forecasts of this device with this torch; where it is."""
    path = _place(peaks.description, peaks.versions["torch"], peaks.threads)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(asdict(peaks), indent=2) + "\n")
    return path


def load(adapter: DeviceAdapter) -> Peaks | None:
    """The result kept for the device of `adapter` with this torch; None without one."""
    device = getattr(adapter, "device", None)
    if adapter.emulated or not isinstance(device, torch.device):
        return None
    version, threads = str(torch.__version__), torch.get_num_threads()
    try:
        path = _place(describe(adapter, device), version, threads)
        with fileops.directory(path.parent) as fd:
            data = json.loads(fileops.read_file(path.name, fd, limit=1 << 20))
        measured = [Measured(**entry) for entry in data.pop("measured")]
        peaks = Peaks(measured=measured, **data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    sane = all((finite(m.median) or 0) > 0 for m in measured)
    return peaks if sane and peaks.schema == SCHEMA else None


def _place(description: str, version: str, threads: int) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or user_path("~/.cache")
    words = f"{description} torch {version} threads {threads}"
    name = "".join(c if c.isalnum() or c in ".+-" else "_" for c in words)
    return Path(root) / "devrun" / "peaks" / f"{name}.json"
