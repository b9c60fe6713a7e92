"""The key `benchmark` of `devrun train`: several seeds to a target, as one result."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devrun.cli.console import say
from devrun.cli.sweep import run_each, tell
from devrun.cli.workdir import DEFAULT_ROOT
from devrun.dist import launched
from devrun.errors import ConfigError
from devrun.files import user_path

DROPS_FROM = 3
"""Runs from which on the fastest and the slowest are left out."""


def benchmark(args: argparse.Namespace, words: Sequence[str], cfg: Any) -> int:
    """Train with one seed after the other, and say the mean time to the target.

    Raises:
        ConfigError: a key that no run could use, the processes of one run were started
            already, or more than one run did not reach the target.
    """
    from devrun.hooks.mlperf import MLPerfLoggerHook

    section = cfg["benchmark"]
    if launched():
        raise ConfigError(
            "benchmark.runs starts each run itself: give --num-devices in place of a "
            "launcher, or benchmark.runs=1"
        )
    MLPerfLoggerHook(**{key: v for key, v in section.items() if key != "runs"})
    first = int(cfg.get("seed") or 0)
    seeds = [{"seed": first + number} for number in range(section["runs"])]
    folder = args.work_dir or f"{DEFAULT_ROOT}/{Path(args.config).stem}-benchmark"
    flags = ("--seed", "--work-dir")
    once = {"benchmark.runs": 1}
    folders, status = run_each(
        cfg, words, user_path(folder), seeds, 1, flags, True, **once
    )
    if status:
        return status
    tell(folders, ["seed"])
    times = [seconds_to_target(folder) for folder in folders]
    ((name, value),) = section["target"].items()
    say(result_line(times, f"{name} {value}"))
    return 0


def result_line(times: Sequence[float | None], target: str) -> str:
    """The result by MLPerf's rules: the mean without the fastest and the slowest run,
    where one that missed the target is the slowest.

    Args:
        times: s; None of a run that missed the target.
    """
    reached = sorted(seconds for seconds in times if seconds is not None)
    missed = len(times) - len(reached)
    drops = len(times) >= DROPS_FROM
    if missed > (1 if drops else 0):
        raise ConfigError(
            f"no result: {missed} of {len(times)} runs did not reach {target}"
            f"{', and one at most may' if drops else ''}; train longer, or ask for less"
        )
    if drops:
        reached = reached[1:] if missed else reached[1:-1]
    said = f"mean of {len(reached)} of {len(times)} runs" if drops else "mean"
    return (
        f"MLPerf-style (unofficial, not verified by MLCommons): {target} in "
        f"{statistics.mean(reached):.3f} s, {said}"
    )


def seconds_to_target(folder: Path) -> float | None:
    """From `run_start` to a `run_stop` with success in the run's newest log."""
    from devrun.hooks.mlperf import SUFFIX

    began, mark = 0, ":::MLLOG "
    for line in sorted(folder.glob(f"*{SUFFIX}"))[-1].read_text("utf-8").splitlines():
        event = json.loads(line.partition(mark)[2])
        if event["key"] == "run_start":
            began = int(event["time_ms"])
        elif event["key"] == "run_stop" and event["metadata"]["status"] == "success":
            return (int(event["time_ms"]) - began) / 1000
    return None
