"""A run as its work_dir tells it: curves, facts, config and warnings.

Nothing is written, and a damaged file costs only what it held: `RecordedRun.problems`
says what could not be read.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from devrun.config.limits import Budget
from devrun.config.yaml_reader import read_yaml
from devrun.errors import ConfigError
from devrun.files import open_regular, user_path
from devrun.lock import may_run
from devrun.text import RECORD, one_line

POSITION = ("mode", "epoch", "iter", "step")
"""Fields of a log line that say where it is."""
_ENTRY = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ - \S+ - (?P<level>[A-Z]+) - "
    r"(?P<text>.*)"
)


@dataclass
class Curve:
    """One logged value over the run.

    Attributes:
        name: as in the log.
        mode: `train` or `val`.
        steps: updates done, ascending, of shape (points,).
        values: of the same shape; NaN and infinities as they were logged.
    """

    name: str
    mode: str
    steps: np.ndarray
    values: np.ndarray

    def finite(self) -> np.ndarray:
        """The values without NaN and infinities."""
        found: np.ndarray = self.values[np.isfinite(self.values)]
        return found

    def sums(self) -> np.ndarray:
        """Of all updates until each entry, of which each is the mean of its updates."""
        means = np.where(np.isfinite(self.values), self.values, 0.0)
        return np.cumsum(np.diff(self.steps, prepend=0) * means)


@dataclass(frozen=True)
class Warned:
    """A warning or an error of the log, and how often it came."""

    level: str
    text: str
    times: int


@dataclass
class RecordedRun:
    """What `read_run` found; parts that are missing are empty."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    """`run.json`."""
    earlier: list[dict[str, Any]] = field(default_factory=list)
    """The same of each part before a resume, the oldest first."""
    config: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> value of the resolved config."""
    curves: list[Curve] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    """What `devrun test --latency --out WORK_DIR/latency.json` found, of each file."""
    problems: list[str] = field(default_factory=list)

    def curve(self, name: str, mode: str) -> Curve | None:
        """The curve of a logged value, if it was logged."""
        found = (c for c in self.curves if (c.name, c.mode) == (name, mode))
        return next(found, None)

    @functools.cached_property
    def train_seconds(self) -> tuple[np.ndarray, np.ndarray]:
        """Updates done, and the seconds of training until then; both empty without
        times."""
        curve = self.curve("time", "train")
        if curve is None:
            return np.zeros(0), np.zeros(0)
        return curve.steps, curve.sums()


def read_run(work_dir: str | Path) -> RecordedRun:
    """The run whose files are in `work_dir`.

    Raises:
        ConfigError: no folder, or one without a run.
    """
    path = user_path(work_dir)
    if not os.path.isdir(path):
        what = "is a file" if os.path.exists(path) else "is not there"
        raise ConfigError(
            f"{str(path)!r} {what}; give the work_dir of a run, the folder that has "
            "its .log.json"
        )
    logs = sorted(path.glob("*.log.json"))
    if not logs and not os.path.lexists(path / "run.json"):
        raise ConfigError(
            f"{str(path)!r} has neither a log of a run (*.log.json) nor run.json; give "
            "the work_dir that devrun train names in its last line"
        )
    run = RecordedRun(path)
    run.curves = list(_curves(logs, run.problems))
    run.facts = _facts(path / "run.json", run.problems)
    if run.facts.get("status") == "running":
        run.facts.update(_fate(path))
    found = [_facts(one, run.problems) for one in path.glob("run-*.json")]
    run.earlier = sorted(found, key=lambda facts: str(facts.get("started")))
    run.config = _config(path, run.problems)
    run.warnings = _warnings(path.glob("*.log"), run.problems)
    run.sweeps = list(_sweeps(sorted(path.glob("latency*.json")), run.problems))
    return run


def _fate(path: Path) -> dict[str, Any]:
    """Of a run that has not said that it ended."""
    heard = max(
        log.stat().st_mtime for log in (*path.glob("*.log*"), path / "run.json")
    )
    last = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(heard))
    if may_run(path):
        return {"heard": last}
    return {
        "status": "lost",
        "error": "ended without a word: killed, crashed or out of memory",
        "heard": last,
    }


def _reading(path: Path) -> TextIO:
    """Its text.

    Raises:
        OSError: it cannot be read, or has no end.
    """
    return io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace")


def _curves(logs: list[Path], problems: list[str]) -> Iterator[Curve]:
    """The values of all logs; a run that was resumed goes on from its checkpoint."""
    found: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    for log in logs:
        began = False
        for record in _records(log, problems):
            mode, step = record.get("mode"), record.get("step")
            if not isinstance(mode, str) or not isinstance(step, int):
                continue  # the head of the file
            if not began:
                began = True
                _forget(found, step if mode == "train" else step + 1)
            for name, value in _numbers(record):
                steps, values = found.setdefault((name, mode), ([], []))
                if steps and steps[-1] == step:
                    values[-1] = value
                elif not steps or step > steps[-1]:
                    steps.append(step)
                    values.append(value)
    for (name, mode), (steps, values) in found.items():
        if steps:
            yield Curve(name, mode, np.array(steps), np.array(values))


def _forget(
    found: Mapping[tuple[str, str], tuple[list[int], list[float]]], step: int
) -> None:
    """Drop what an earlier part of the run logged of `step` and later."""
    for steps, values in found.values():
        kept = bisect_left(steps, step)
        del steps[kept:], values[kept:]


def _records(log: Path, problems: list[str]) -> Iterator[dict[str, Any]]:
    broken = 0
    try:
        with _reading(log) as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    broken += 1
                    continue
                if isinstance(record, dict):
                    yield record
    except OSError as error:
        problems.append(f"{log.name} cannot be read: {error.strerror}")
    if broken:
        problems.append(f"{log.name}: damaged lines left out: {broken}")


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if name in POSITION:
            continue
        several = isinstance(value, dict)  # the learning rates of several optimizers
        entries = (
            {f"{name}/{key}": each for key, each in value.items()}
            if several
            else {name: value}
        )
        for key, entry in entries.items():
            if (number := _number(entry)) is not None:
                yield key, number


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def _facts(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        with _reading(path) as file:
            facts = json.load(file)
    except (OSError, ValueError) as error:
        reason = (
            "is not there" if isinstance(error, FileNotFoundError) else "is damaged"
        )
        problems.append(f"{path.name} {reason}: device, versions and times are unknown")
        return {}
    return facts if isinstance(facts, dict) else {}


_SWEPT = ("batch", "per_second", "p50_ms", "p99_ms", "graphs", "transfers")


def _sweeps(paths: list[Path], problems: list[str]) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            with _reading(path) as file:
                found = json.load(file)["results"]
            points = [
                {key: _number(point[key]) for key in _SWEPT}
                for point in found["latency"]
            ]
            how = " (emulated)" if found["emulated"] else ""
            how += f", through {found['through']}" if found["through"] else ""
        except (OSError, ValueError, LookupError, TypeError):
            problems.append(f"{path.name} is no sweep of devrun test --latency")
            continue
        yield {"name": f"{found['device']}{how}", "points": points}


def _config(path: Path, problems: list[str]) -> dict[str, Any]:
    """The resolved config as it was written: nothing in it is looked up again."""
    file = path / "config.yaml"
    try:
        with _reading(file) as stream:
            text = stream.read()
        tree = read_yaml(text, str(file), Budget())
    except (OSError, ValueError) as error:  # a ConfigError is a ValueError
        absent = isinstance(error, FileNotFoundError)
        reason = "is not there" if absent else f"cannot be read ({one_line(error)})"
        problems.append(f"{file.name} {reason}: the config is not compared")
        return {}
    tree.pop("work_dir", None)  # where it is, not what it does
    return dict(flat(tree))


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each leaf of a config."""
    if isinstance(value, dict) and value:
        for name, entry in value.items():
            yield from flat(entry, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        for index, entry in enumerate(value):
            yield from flat(entry, f"{key}.{index}")
    else:
        yield key, value


def _warnings(logs: Iterable[Path], problems: list[str]) -> list[Warned]:
    """Warnings and errors in the order of their first time; equal ones once."""
    counts: dict[tuple[str, str], int] = {}
    for log in sorted(logs):
        try:
            with _reading(log) as file:
                for key in _entries(file):
                    counts[key] = counts.get(key, 0) + 1
        except OSError as error:
            problems.append(f"{log.name} cannot be read: {error.strerror}")
    return [Warned(level, text, times) for (level, text), times in counts.items()]


def _entries(file: TextIO) -> Iterator[tuple[str, str]]:
    """(level, text) of the warnings and errors of a log."""
    level, lines = "", [""]
    for line in file:
        entry = _ENTRY.match(line)
        if entry is None:
            if level:
                lines.append(line.rstrip("\n")[:RECORD])
            continue
        if level:
            yield level, "\n".join(lines)
        known = entry["level"] in ("WARNING", "ERROR", "CRITICAL")
        level, lines = entry["level"] if known else "", [entry["text"][:RECORD]]
    if level:
        yield level, "\n".join(lines)
