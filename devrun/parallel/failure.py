"""Which of several processes that ended was the cause, and what it said."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devrun.errors import DevrunError
from devrun.launched import AT_ONCE

FINAL = (2, 3, 5, 9, 75, 130, 143)
"""Statuses that another start would end with too, or that mean to stop."""
STOPPED = (75, 130, 143)
_CLOSED = (143, -signal.SIGTERM, -signal.SIGKILL)
"""Of a process that the launcher ended, because another had failed."""
_SILENT = (
    "did not answer, as a process that is stopped or in native code, and was ended"
)


class RankError(DevrunError):
    """A process has failed; `exit_code` is its status.

    Attributes:
        lost: the cause is a process of another machine.
        keeps_output: a file is named in which something is left to read.
    """

    def __init__(
        self,
        message: str,
        exit_code: int,
        *,
        lost: bool = False,
        keeps_output: bool = False,
        final: bool = False,
    ) -> None:
        super().__init__(message)
        self.exit_code, self.lost, self.keeps_output = exit_code, lost, keeps_output
        self.final = final or exit_code in FINAL
        """Whether to start again would be in vain."""
        self.stacks = ""
        """Of all processes, where the run hung."""


@dataclass(frozen=True)
class Ended:
    """A process that failed."""

    code: int
    """Its status, or the negative number of the signal that ended it."""
    told: Mapping[str, Any]
    """What it left by `tell_launcher`; empty where it was ended, or crashed."""
    output: Path
    """What it wrote to stderr, where that did not go to the launcher's."""
    first: bool
    """Whether it failed before the launcher ended the others."""

    @classmethod
    def of(cls, code: int, place: Path, first: bool) -> Ended:
        """Of a process with its files in `place`."""
        try:
            told = json.loads((place / "error.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):  # it said nothing, or the disk is full
            told = {}
        return cls(code, told, place / "stderr", first)

    @property
    def message(self) -> str:
        return str(self.told["message"]["message"]) if "status" in self.told else ""

    @property
    def silent(self) -> bool:
        """Whether it had to be killed, as it did not answer."""
        return not self.first and self.code == -signal.SIGKILL


def cause(ended: Mapping[int, Ended]) -> RankError:
    """The failure, of those by rank, that the others followed from."""

    def order(rank: int) -> tuple[bool, bool, bool, float, int]:
        each = ended[rank]
        closed = not each.first and each.told.get("status", each.code) in _CLOSED
        lost, time = bool(each.told.get("lost")), each.told.get("time", 0.0)
        return lost, closed, not each.first, time, rank

    rank = min(ended, key=order)
    message, status, keeps = _described(ended[rank])
    # what several found wrong is said of the first
    rank = min([rank, *(n for n, each in ended.items() if each.message == message)])
    if hang := _hang(ended):
        message = f"{message}; {hang}"
    whole = "status" in ended[rank].told
    link = ": " if whole else " "
    error = RankError(
        f"rank {rank}{link}{message}" if rank or not whole else message,
        status,
        lost=bool(ended[rank].told.get("lost")),
        keeps_output=keeps,
    )
    error.stacks = "\n".join(
        f"rank {other}: {each.told['stacks']}"
        for other, each in sorted(ended.items())
        if "stacks" in each.told
    )
    return error


def _hang(ended: Mapping[int, Ended]) -> str:
    """Who waits in which exchange, who did not come to it, and who said nothing."""
    hung = {
        n: e.told["exchange"] for n, e in sorted(ended.items()) if "stacks" in e.told
    }
    waiting = [rank for rank, exchange in hung.items() if exchange]
    others = [str(rank) for rank in hung if rank not in waiting]
    if not hung:
        return ""
    parts = [f"rank {rank} waits in {hung[rank]}" for rank in waiting[:4]]
    if waiting and others:
        plural = "s" if len(others) > 1 else ""
        parts.append(f"rank{plural} {', '.join(others[:8])} did not come to it")
    silent = [rank for rank, each in sorted(ended.items()) if each.silent]
    return ", ".join(parts + [f"rank {rank} {_SILENT}" for rank in silent[:8]])


def _described(ended: Ended) -> tuple[str, int, bool]:
    """(message, status, whether that names the file with its output)."""
    if "status" in ended.told:
        return ended.message, int(ended.told["status"]), False
    if ended.silent:
        return _SILENT, 7, False
    left, tail, code = "", _tail(ended.output), ended.code
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if code in (-signal.SIGTERM, -AT_ONCE):
            return "stopped by SIGTERM before the first iteration", 143, False
        if tail:
            left = f"; what it left is in {ended.output}"
        hint = " (if nobody did that, memory ran out: see dmesg)"
        hint = hint if code == -signal.SIGKILL else ""
        return f"was ended by {name}{hint}{left}", 7, bool(tail)
    if tail:
        left = f": {tail}"
    return f"ended with status {code}{left}", code, False


def _tail(path: Path) -> str:
    """The last line of a file; empty where there is none."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
