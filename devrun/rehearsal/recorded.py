"""A run as its work_dir tells it: curves, facts, checkpoints and warnings.

Nothing is written, and a damaged file costs only what it held: `RecordedRun.problems`
says what could not be read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from devrun.checkpoint.catalog import CheckpointInfo, list_checkpoints
from devrun.config.limits import Budget
from devrun.config.yaml_reader import read_yaml
from devrun.errors import ConfigError, DevrunError
from devrun.text import one_line

__all__ = ["Curve", "RecordedRun", "Saved", "Warned", "read_run"]

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


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is there."""

    name: str
    step: int
    created: str | None
    size: int
    """Bytes."""
    problem: str | None
    best: bool


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
    config: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> value of the resolved config."""
    curves: list[Curve] = field(default_factory=list)
    checkpoints: list[Saved] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def curve(self, name: str, mode: str) -> Curve | None:
        """The curve of a logged value, if it was logged."""
        found = (c for c in self.curves if (c.name, c.mode) == (name, mode))
        return next(found, None)


def read_run(work_dir: str | Path) -> RecordedRun:
    """The run whose files are in `work_dir`.

    Raises:
        ConfigError: no folder, or one without logs.
    """
    path = Path(work_dir).expanduser()
    if not path.is_dir():
        what = "is a file" if path.exists() else "is not there"
        raise ConfigError(
            f"{str(path)!r} {what}; give the work_dir of a run, the folder that has "
            "its .log.json"
        )
    logs = sorted(path.glob("*.log.json"))
    if not logs:
        raise ConfigError(
            f"{str(path)!r} has no log of a run (*.log.json); give the work_dir that "
            "devrun train names in its last line"
        )
    run = RecordedRun(path)
    run.curves = list(_curves(logs, run.problems))
    run.facts = _facts(path / "run.json", run.problems)
    run.config = _config(path, run.problems)
    run.checkpoints = _checkpoints(path / "checkpoints", run.problems)
    run.warnings = _warnings(path.glob("*.log"), run.problems)
    return run


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
        yield Curve(name, mode, np.array(steps), np.array(values, dtype=np.float64))


def _forget(
    found: Mapping[tuple[str, str], tuple[list[int], list[float]]], step: int
) -> None:
    """Drop what an earlier part of the run logged of `step` and later."""
    for steps, values in found.values():
        kept = int(np.searchsorted(steps, step))
        del steps[kept:], values[kept:]


def _records(log: Path, problems: list[str]) -> Iterator[dict[str, Any]]:
    broken = 0
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    broken += 1
                    continue
                if isinstance(record, dict):
                    yield record
    except OSError as error:
        problems.append(f"{log.name} cannot be read: {error.strerror}")
    if broken:
        lines_ = "line" if broken == 1 else "lines"
        problems.append(f"{log.name}: {broken} damaged {lines_} left out")


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if name in POSITION:
            continue
        if isinstance(value, dict):  # the learning rates of several optimizers
            yield from (
                (f"{name}/{key}", number)
                for key, entry in value.items()
                if (number := _number(entry)) is not None
            )
        elif (number := _number(value)) is not None:
            yield name, number


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return None


def _facts(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = (
            "is not there" if isinstance(error, FileNotFoundError) else "is damaged"
        )
        problems.append(f"{path.name} {reason}: device, versions and times are unknown")
        return {}
    return facts if isinstance(facts, dict) else {}


def _config(path: Path, problems: list[str]) -> dict[str, Any]:
    """The resolved config as it was written: nothing in it is looked up again."""
    file = path / "config.yaml"
    try:
        tree = read_yaml(file.read_text(encoding="utf-8"), str(file), Budget())
    except (OSError, ValueError) as error:  # a ConfigError is a ValueError
        absent = isinstance(error, FileNotFoundError)
        reason = "is not there" if absent else f"cannot be read ({one_line(error)})"
        problems.append(f"{file.name} {reason}: the config is not compared")
        return {}
    tree.pop("work_dir", None)  # where it is, not what it does
    return dict(_flat(tree))


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, entry in value.items():
            yield from _flat(entry, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        for index, entry in enumerate(value):
            yield from _flat(entry, f"{key}.{index}")
    else:
        yield key, value


def _checkpoints(path: Path, problems: list[str]) -> list[Saved]:
    try:
        best = json.loads((path / "best.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        best = {}
    name = best.get("checkpoint") if isinstance(best, dict) else None
    try:
        return [_saved(info, name) for info in list_checkpoints(path)]
    except DevrunError as error:
        problems.append(f"checkpoints cannot be read: {error}")
        return []


def _saved(info: CheckpointInfo, best: str | None) -> Saved:
    manifest = info.manifest
    size = sum(f.size for f in manifest.files) if manifest else 0
    created = manifest.created if manifest else None
    name = info.path.name
    return Saved(name, info.step, created, size, info.problem, name == best)


def _warnings(logs: Iterator[Path], problems: list[str]) -> list[Warned]:
    """Warnings and errors in the order of their first time; equal ones once."""
    counts: dict[tuple[str, str], int] = {}
    for log in sorted(logs):
        level, lines = "", []
        try:
            text = log.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            problems.append(f"{log.name} cannot be read: {error.strerror}")
            continue
        for line in [*text.splitlines(), "0000-00-00 00:00:00,0 - end - END - "]:
            entry = _ENTRY.match(line)
            if entry is None:
                lines.append(line)
                continue
            if level in ("WARNING", "ERROR", "CRITICAL"):
                key = (level, "\n".join(lines))
                counts[key] = counts.get(key, 0) + 1
            level, lines = entry["level"], [entry["text"]]
    return [Warned(level, text, times) for (level, text), times in counts.items()]
