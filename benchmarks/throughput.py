"""Items a second of whole updates: by hand, tuned by hand, devrun, and three peers.

All arms of a case train the same model on the same batches, which lie on the device
beforehand, with the same optimizer, cosine schedule, clipping by norm and logged mean
loss. Each arm is a process of its own, so that no setting, compiler state or memory of
one meets another. It lives through the whole case: its data iterator waits until it is
its turn, so that one arm runs at a time. A turn is two updates to warm up and then the
timed ones, between two synchronisations; all arms have one turn a round, another arm
first in each round, and ratios are those of one round. Between its turns an arm gives
the memory that it only keeps back to the device. The cases share `--minutes` evenly:
there are as many rounds as fit, and arms whose compilation does not are left out.

    python benchmarks/throughput.py --device cuda [--cases resnet50 gpt2] [--arms ...]
    python benchmarks/throughput.py --size cpu

The first update is timed apart, with everything compiled in it: compilers find on disk
what earlier arms left there, unless `--cold` gives each arm a cache of its own. Arms
named `tuned` and those of the peers have bf16 autocast where the device computes in it,
a fused optimizer, channels-last for the CNNs, and on CUDA TF32 and compilation: of the
blocks, in the peer's own way where it has one. Lightning has no fused optimizer: with
autocast it refuses to clip for one. On a CPU bf16 may be slower, so `tuned, fp32` is
there too, and the better of both is what a hand would keep. Peak memory
is what the arm's tensors took at most on CUDA, and on a CPU what its process had
resident, with all libraries.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field

import torch
from throughput_arms import ARMS, Setting, run_arm
from throughput_cases import CASES, Case

from devrun.devices.resolve import resolve_device
from devrun.rehearsal.bench import load

NO_TIME = "no time was left: give more by --minutes, or fewer --cases or --arms"
SETTLED = 0.6
"""Of a case's time: when the first updates should be over, compilation included."""


def measured_peak(device: str) -> float | None:
    """TFLOP/s of bf16 products, if `devrun devices --bench` has measured the device."""
    peaks = load(resolve_device(device))
    rows = peaks.measured if peaks else []
    rates = [m.median for m in rows if (m.kind, m.dtype) == ("matmul", "bf16")]
    return max(rates) / 1e3 if rates else None


@dataclass
class Result:
    """Of an arm: seconds of an update in each round, or why there are none."""

    seconds: list[float] = field(default_factory=list)
    first: float = 0.0
    peak: float = 0.0
    failed: str = ""


class Running:
    """An arm's process, seen from outside."""

    def __init__(self, case: str, name: str, setting: Setting, work: str) -> None:
        self.result = Result()
        self.updates = setting.updates
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(
            target=run_arm, args=(case, name, setting, work, other), daemon=True
        )
        before = dict(os.environ)
        if setting.cold:
            folder = os.path.join(work, name.replace(" ", "-"))
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")
        self.process.start()
        os.environ.clear()
        os.environ.update(before)
        other.close()

    def turn(self, until: float) -> None:
        """Let it run, until it has something to say or the time is over."""
        if not self.result.failed and self.process.is_alive():
            self.pipe.send(True)
            self.hear(until)

    def hear(self, until: float) -> None:
        try:
            if self.pipe.poll(max(0, until - time.perf_counter())):
                found = self.pipe.recv()
            else:
                self.end()
                found = {} if self.result.seconds else {"failed": NO_TIME}
        except EOFError:
            found = {"failed": "its process ended"}
        self.result.failed = found.get("failed", "")
        self.result.first = found.get("first", self.result.first)
        self.result.peak = found.get("peak", self.result.peak)
        if "seconds" in found:
            self.result.seconds.append(found["seconds"] / self.updates)

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def compare(
    case: str, arms: list[str], setting: Setting, rounds: int, until: float
) -> dict[str, Result]:
    """All arms of a case in turns: so many rounds, or those that end in time.

    Arms that have not begun when `SETTLED` of the time is over are left out.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        running = {name: Running(case, name, setting, work) for name in arms}
        try:
            for arm in running.values():
                arm.hear(until)
            now = time.perf_counter()
            settled = now + SETTLED * (until - now)
            for arm in running.values():
                if time.perf_counter() < settled:
                    arm.turn(until)  # the first update, and those until it is settled
                elif not arm.result.failed:
                    arm.result.failed = NO_TIME
            for number in range(rounds):
                began = time.perf_counter()
                shift = number % len(arms)
                for name in arms[shift:] + arms[:shift]:
                    running[name].turn(until)
                now = time.perf_counter()
                if now + (now - began) > until:
                    break
        finally:
            for arm in running.values():
                arm.end()
    return {name: arm.result for name, arm in running.items()}


def table(case: Case, results: dict[str, Result], peak: float | None) -> list[str]:
    """As Markdown. `peak`: TFLOP/s of the device, to which MFU refers."""
    flops = case.flops() if peak else None
    kind = "tokens" if case.is_text else "images"
    rows = [
        f"| | {kind}/s | of tuned | of plain | first update | peak memory | MFU |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        if result.failed or not result.seconds:
            rows.append(f"| {name} | {result.failed or 'no turn'} | | | | | |")
            continue
        second = statistics.median(result.seconds)
        mfu = f"{flops / second / peak / 1e12:.1%}" if flops and peak else ""
        rows.append(
            f"| {name} | {case.items / second:.0f} | {of(results, 'tuned', result)} | "
            f"{of(results, 'plain', result)} | {result.first:.2f} s | "
            f"{result.peak:.0f} MiB | {mfu} |"
        )
    return rows


def of(results: dict[str, Result], base: str, result: Result) -> str:
    """Rate as a ratio to that of the arm `base`, median (range) of the rounds."""
    other = results.get(base, Result())
    if result is other or other.failed or not other.seconds:
        return "1" if result is other else ""
    ratios = [
        theirs / mine
        for theirs, mine in zip(other.seconds, result.seconds, strict=False)
    ]
    middle = statistics.median(ratios)
    return f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def versions(packages: set[str]) -> str:
    found = [
        f"{name} {importlib.metadata.version(name)}"
        for name in sorted(packages - {"devrun"})
    ]
    return ", ".join([*found, f"Python {sys.version.split()[0]}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--size", choices=CASES, default="gpu")
    parser.add_argument(
        "--cases", nargs="+", choices=CASES["gpu"], default=list(CASES["gpu"])
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS)
    parser.add_argument("--rounds", type=int, default=5, help="at most")
    parser.add_argument("--updates", type=int, help="of a turn")
    parser.add_argument("--threads", type=int, default=1, help="of a process")
    parser.add_argument("--minutes", type=float, default=9.0, help="of all cases")
    parser.add_argument("--cold", action="store_true", help="a compiler cache an arm")
    parser.add_argument("--peak", type=float, help="TFLOP/s, for MFU")
    args = parser.parse_args()
    device = args.device or ("cpu" if args.size == "cpu" else "cuda")
    updates = args.updates or (5 if device == "cpu" else 20)
    if min(args.rounds, updates, args.threads) < 1:
        parser.error("--rounds, --updates and --threads are at least 1")
    if args.minutes <= 0:
        parser.error("--minutes is above 0")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device here: --size cpu takes the CPU")
    os.environ["PYTHONWARNINGS"] = "ignore"  # of what a process killed left behind
    setting = Setting(args.size, device, updates, args.threads, args.cold)
    chosen = args.arms or [n for n in ARMS if device == "cpu" or n != "tuned, fp32"]
    arms = [
        name
        for name in chosen
        if is_there(ARMS[name].package) and is_there(ARMS[name].needs)
    ]
    cases = {
        name: case
        for name, case in CASES[args.size].items()
        if name in args.cases and is_there(case.package)
    }
    absent = {*chosen, *args.cases} - {*arms, *cases}
    if not arms or not cases:
        parser.error(f"not installed: {', '.join(sorted(absent))}")
    where = torch.cuda.get_device_name() if device == "cuda" else f"{args.threads} CPU"
    say(f"{where}: {versions({ARMS[name].package for name in arms} | {'torch'})}")
    say(f"not installed: {', '.join(sorted(absent)) or 'none'}")
    end = time.perf_counter() + 60 * args.minutes
    for number, (name, case) in enumerate(cases.items()):
        now = time.perf_counter()
        until = now + (end - now) / (len(cases) - number)
        results = compare(name, arms, setting, args.rounds, until)
        rounds = max(len(result.seconds) for result in results.values())
        say(f"\n{name}, batch {case.batch} of {case.shape}, {rounds} rounds\n")
        say("\n".join(table(case, results, args.peak or measured_peak(device))))
    return 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
