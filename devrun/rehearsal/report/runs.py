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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from devrun.config.limits import Budget
from devrun.config.yaml_reader import read_yaml
from devrun.errors import ConfigError
from devrun.files import open_regular, read_json, user_path
from devrun.lock import LOST, may_run
from devrun.runners.changes import leaves
from devrun.text import one_line

POSITION = ("mode", "epoch", "iter", "step")
"""Fields of a log line that say where it is."""
_WARNING = re.compile(
    r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ - \S+ - (WARNING|ERROR|CRITICAL) - "
    r"(.*(?:\n    .*)*)",  # whose other lines are indented
    re.MULTILINE,
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
    warnings: list[dict[str, Any]] = field(default_factory=list)
    """Each once: `level`, `text`, and how many `times` it came."""
    problems: list[str] = field(default_factory=list)

    def curve(self, name: str, mode: str) -> Curve | None:
        """The curve of a logged value, if it was logged."""
        found = (c for c in self.curves if (c.name, c.mode) == (name, mode))
        return next(found, None)

    @functools.cached_property
    def train_seconds(self) -> tuple[np.ndarray, np.ndarray]:
        """Updates done, and the seconds of training until then; empty without times."""
        curve = self.curve("time", "train")
        if curve is None:
            return np.zeros(0), np.zeros(0)
        return curve.steps, curve.sums()


def read_run(work_dir: str | Path) -> RecordedRun:
    """The run whose files are in `work_dir`.

    Raises:
        ConfigError: no folder of a run.
    """
    path = user_path(work_dir)
    logs = sorted(path.glob("*.log.json")) if os.path.isdir(path) else []
    if not logs and not os.path.lexists(path / "run.json"):
        raise ConfigError(
            f"{str(path)!r} is no folder of a run: neither *.log.json nor run.json is "
            "there; give the work_dir that devrun train names in its last line"
        )
    run = RecordedRun(path)
    run.curves = _curves(logs, run.problems)
    run.facts = _facts(path / "run.json", run.problems)
    if run.facts.get("status") == "running":
        run.facts.update(_fate(path))
    found = [_facts(one, run.problems) for one in path.glob("run-*.json")]
    run.earlier = sorted(found, key=lambda facts: str(facts.get("started")))
    run.config = _config(path / "config.yaml", run.problems)
    run.warnings = _warnings(sorted(path.glob("*.log")), run.problems)
    return run


def _fate(path: Path) -> dict[str, Any]:
    """Of a run that has not said that it ended."""
    files = (*path.glob("*.log*"), path / "run.json")
    heard = max(file.stat().st_mtime for file in files)
    last = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(heard))
    ended = {} if may_run(path) else {"status": "lost", "error": LOST}
    return {**ended, "heard": last}


@contextmanager
def _noted(path: Path, problems: list[str]) -> Iterator[None]:
    """Within, a file that is not what it should be costs only what it held."""
    try:
        yield
    except FileNotFoundError:
        problems.append(f"{path.name} is not there")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        problems.append(f"{path.name} cannot be read: {one_line(error)}")


def _reading(path: Path) -> TextIO:
    """Its text.

    Raises:
        OSError: it cannot be read, or has no end.
    """
    return io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace")


def _curves(logs: list[Path], problems: list[str]) -> list[Curve]:
    """The values of all logs; a run that was resumed goes on from its checkpoint."""
    found: dict[tuple[str, str], dict[int, float]] = {}
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
                found.setdefault((name, mode), {})[step] = value
    return [
        Curve(name, mode, *map(np.array, zip(*sorted(values.items()))))
        for (name, mode), values in found.items()
        if values
    ]


def _forget(found: Mapping[tuple[str, str], dict[int, float]], step: int) -> None:
    """Drop what an earlier part of the run logged of `step` and later."""
    for values in found.values():
        for later in [each for each in values if each >= step]:
            del values[later]


def _records(log: Path, problems: list[str]) -> Iterator[dict[str, Any]]:
    broken = 0
    with _noted(log, problems), _reading(log) as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                broken += 1
                continue
            if isinstance(record, dict):
                yield record
    if broken:
        problems.append(f"{log.name}: damaged lines left out: {broken}")


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        # a dict has the learning rates of several optimizers
        entries = value if isinstance(value, dict) else {"": value}
        for key, entry in entries.items():
            known = entry in ("NaN", "Infinity", "-Infinity")
            number = isinstance(entry, (int, float)) and not isinstance(entry, bool)
            if name not in POSITION and (known or number):
                yield f"{name}/{key}" if key else name, float(entry)


def _facts(path: Path, problems: list[str]) -> dict[str, Any]:
    facts = None
    with _noted(path, problems):
        facts = read_json(path)
    return facts if isinstance(facts, dict) else {}


def _config(path: Path, problems: list[str]) -> dict[str, Any]:
    """The resolved config as it was written: nothing in it is looked up again."""
    tree: dict[str, Any] = {}
    with _noted(path, problems), _reading(path) as stream:
        tree = read_yaml(stream.read(), str(path), Budget())
    tree.pop("work_dir", None)  # where it is, not what it does
    return dict(leaves(tree))


def _warnings(logs: Iterable[Path], problems: list[str]) -> list[dict[str, Any]]:
    """Warnings and errors in the order of their first time; equal ones once."""
    counts: Counter[tuple[str, str]] = Counter()
    for log in logs:
        with _noted(log, problems), _reading(log) as file:
            counts.update((m[1], m[2]) for m in _WARNING.finditer(file.read()))
    return [
        {"level": level, "text": text, "times": times}
        for (level, text), times in counts.items()
    ]
