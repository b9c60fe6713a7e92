"""Metrics in a file: a JSON array, or text, at the triggers that were asked for."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any, List, Tuple

Rows = List[Tuple[str, List[Tuple[str, Any]]]]
FORMATS = ("json", "text")
TRIGGERS = ("process_exit", "mark_step", "metric_change")


def _record(name: str, trigger: str, stats: list[tuple[str, Any]]) -> dict[str, Any]:
    return {
        "metric_name": name,
        "triggered_by": trigger,
        "generated_on": datetime.now().isoformat(),
        "statistics": dict(stats),
    }


def _text(records: list[dict[str, Any]]) -> str:
    lines = []
    for record in records:
        lines.append(f"{record['metric_name']} ({record['triggered_by']}):")
        lines += [f"    {tag}: {value}" for tag, value in record["statistics"].items()]
    return "\n".join(lines) + "\n"


def _store(path: str, file_format: str, records: list[dict[str, Any]]) -> None:
    if file_format not in FORMATS:
        raise ValueError(f"metrics format {file_format!r}: known are {FORMATS}")
    text = json.dumps(records, indent=2) if file_format == "json" else _text(records)
    Path(path).write_text(text, encoding="utf-8")


def write_metrics(path: str, file_format: str, trigger: str, rows: Rows) -> None:
    """Write `rows` to `path`, over what is there."""
    _store(path, file_format, [_record(name, trigger, s) for name, s in rows])


def _environment(name: str, default: str) -> str:
    for prefix in ("PT_HPU_METRICS_", "HABANA_PT_METRICS_"):
        if value := os.environ.get(prefix + name):
            return value
    return default


def _unused_path(path: str) -> str:
    """`name-rank<R>.ext` in a distributed run, else the first free of `.1`, `.2`."""
    rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
    stem, extension = os.path.splitext(path)
    if rank is not None:
        return f"{stem}-rank{rank}{extension}"
    number, candidate = 0, path
    while os.path.exists(candidate):
        number += 1
        candidate = f"{stem}.{number}{extension}"
    return candidate


class Saver:
    """Collects records and keeps the file complete after each."""

    def __init__(self, path: str, file_format: str, triggers: set[str]) -> None:
        self._wanted = path
        self._path: str | None = None
        self._format = file_format
        self._triggers = triggers
        self._records: list[dict[str, Any]] = []

    @classmethod
    def from_environment(cls) -> Saver | None:
        """The saver that PT_HPU_METRICS_FILE asks for, or None."""
        path = _environment("FILE", "")
        if not path:
            return None
        triggers = set(_environment("DUMP_TRIGGERS", "process_exit").split(","))
        unknown = triggers - set(TRIGGERS)
        if unknown:
            raise ValueError(f"metric triggers {sorted(unknown)}: known are {TRIGGERS}")
        return cls(path, _environment("FILE_FORMAT", "json"), triggers)

    def enable(self) -> None:
        """The device was acquired: from now on there is a file."""
        if self._path is None:
            self._path = _unused_path(self._wanted)

    def trigger(self, name: str, rows: Rows) -> None:
        """Write, where the trigger was asked for and a device was acquired."""
        if self._path is None or name not in self._triggers:
            return
        self._records += [_record(metric, name, stats) for metric, stats in rows]
        _store(self._path, self._format, self._records)
