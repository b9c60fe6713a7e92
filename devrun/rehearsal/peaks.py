"""What a device really reaches: products, convolutions, copies, by measuring them.

Nothing is looked up in a data sheet. Each case is calibrated to take a few
milliseconds, the cases take turns, and what counts is the median over the rounds: the
best of many is what a shared machine never gives again.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from devrun.checkpoint import fileops
from devrun.devices.base import DeviceAdapter
from devrun.dist import all_reduce_max
from devrun.errors import UnsupportedFeatureError
from devrun.files import replace_text, user_path
from devrun.rehearsal.shares import finite
from devrun.rehearsal.workloads import Case, Layers, cases

if TYPE_CHECKING:
    from torch.utils.benchmark import Timer

SCHEMA = "devrun.peaks/1"
ROUND = 0.02
"""Seconds that a case runs in one round, about."""
SLOW = 0.25
"""Seconds; what takes longer by itself would take the time of all others."""


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
        found = [
            m.median for m in self.measured if (m.kind, m.dtype) == ("matmul", dtype)
        ]
        return max(found, default=None)


def measure(
    adapter: DeviceAdapter,
    *,
    seconds: float = 20.0,
    layers: Layers | None = None,
) -> Peaks:
    """Measure the device of `adapter`, set up, for about `seconds`.

    Args:
        adapter: one that computes operation by operation; an emulated one says
            nothing about speed.
        seconds: of measuring; every case has three rounds at least.
        layers: those of a model, beside the usual shapes.

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
    found, left_out = cases(device, dtypes, own_memory=own, layers=layers)
    rates, failed = _rounds(found, seconds)
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


def _rounds(
    found: Iterable[Case], seconds: float
) -> tuple[list[tuple[Case, list[float]]], list[str]]:
    """Each case's rates, the cases in turn."""
    ready: list[tuple[Case, Timer, int, list[float]]] = []
    failed = []
    for case in found:
        try:
            timer, number = _calibrated(case.run)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            reason = str(error).partition("\n")[0][:120]
            failed.append(f"{case.kind} {case.dtype} {case.shape}: {reason}")
            continue
        if number == 0:
            failed.append(f"{case.kind} {case.dtype} {case.shape}: over {SLOW} s each")
            continue
        ready.append((case, timer, number, []))
    began = time.perf_counter()
    while ready:
        for case, timer, number, rates in ready:
            rates.append(case.work / (timer.timeit(number).median))
        done = len(ready[0][3])
        spent = all_reduce_max(time.perf_counter() - began)
        if done >= 3 and spent > seconds * done / (done + 1):
            break
    return [(case, rates) for case, _, _, rates in ready], failed


def _calibrated(run: Callable[[], Any]) -> tuple[Timer, int]:
    """A timer that waits for the device, warm, and the runs that make up a round.

    0 runs of what takes so long that a smaller shape has to speak for it.
    """
    # here, as every training reads the peaks that are kept, and this takes 0.1 s
    from torch.utils.benchmark import Timer

    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    number = 1

    def taken() -> float:
        """Seconds of the slowest process: all are to run a collective as often."""
        return all_reduce_max(timer.timeit(number).median * number)

    # the first run compiles, allocates and picks algorithms
    if taken() > SLOW and taken() > SLOW:
        return timer, 0
    while (took := taken()) < ROUND and number < 1 << 16:
        number = max(number * 2, int(number * ROUND / max(took, 1e-9)))
    return timer, number


def _judged(rates: Iterable[tuple[Case, list[float]]]) -> list[Measured]:
    listed = [(case, *_quartiles(values)) for case, values in rates]
    best: dict[tuple[str, str], float] = {}
    for case, median, *_ in listed:
        key = (case.kind, case.dtype)
        best[key] = max(best.get(key, 0.0), median)
    measured = []
    for case, median, low, high in listed:
        share = median / best[case.kind, case.dtype]
        values = (median, low, high)
        if case.unit == "us":  # a time, made of a rate
            values = (1e6 / median, 1e6 / high, 1e6 / low)
        else:
            values = (median / 1e9, low / 1e9, high / 1e9)
        measured.append(
            Measured(case.kind, case.dtype, case.shape, *values, case.unit, share)
        )
    return measured


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return statistics.median(values), low, high


def save(peaks: Peaks) -> Path:
    """Keep the result for runs on this device with this torch; where it is."""
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
