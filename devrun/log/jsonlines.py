"""One strict JSON object a line, as `TIMESTAMP.log.json` has them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from devrun.errors import ConfigError
from devrun.files import disk_errors, unfollowed
from devrun.redact import MASK, is_secret_key, redact

DIGITS = 5
NOT_METRICS = (
    "mode", "epoch", "iter", "step", "lr", "momentum", "memory",
    "time", "data_time", "wait_time", "copy_time", "compute_time",
)  # fmt: skip
"""Fields of a record about the run, not the model; `TextLoggerHook` keeps log values
of these names apart, with a `_` behind."""


def read_records(log: Path) -> Iterator[dict[str, Any]]:
    """What a run of this program has written to `log`; nothing if there is no file."""
    if log.is_file():
        with open(log, encoding="utf-8", opener=unfollowed) as lines:
            yield from map(json.loads, lines)


class JsonLines:
    """Appends records to a file; every line is on disk's way when `write` returns."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open(  # noqa: SIM115 - kept open
                path, "a", encoding="utf-8", opener=unfollowed
            )
        except OSError as error:
            raise ConfigError(
                f"cannot write {path!r}: {error.strerror}; choose another work_dir"
            ) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            StorageError: the disk is full or gone.
        """
        with disk_errors(f"cannot write {self.path!r}"):
            self._file.write(strict_line(record) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file; safe twice."""
        self._file.close()


def strict_line(record: Mapping[str, Any]) -> str:
    """`record` as one line of JSON that every parser accepts.

    Floats keep 5 decimals, or 5 significant digits below 0.001 so that a small
    learning rate does not become 0. What JSON has no number for is a string, see
    `json_number`: null would hide which of them it was. ASCII only, so that no
    character breaks the line.
    """
    return json.dumps(plain(record, rounded=True), ensure_ascii=True, allow_nan=False)


def plain(value: Any, *, rounded: bool = False, secret: bool = False) -> Any:
    """`value` in JSON's types; secrets masked; numbers that JSON lacks as text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return MASK if secret and value else redact(str(value))
    if isinstance(value, float):
        return json_number(_rounded(float(value)) if rounded else float(value))
    within = partial(plain, rounded=rounded)
    if isinstance(value, Mapping):
        return {
            str(key): within(entry, secret=secret or is_secret_key(key))
            for key, entry in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [within(entry, secret=secret) for entry in value]
    if callable(getattr(value, "tolist", None)):  # numpy, or a tensor
        return within(value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return redact(str(value))


def json_number(value: float) -> float | str:
    """`value`; what JSON has no number for as a text that `float()` reads."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _rounded(value: float) -> float:
    if abs(value) < 1e-3:
        return float(f"{value:.{DIGITS}g}")
    return round(value, DIGITS)
