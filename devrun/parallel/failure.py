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

STOPPED = (75, 130, 143)
"""Statuses of a run that was told to stop."""
_CLOSED = (143, -signal.SIGTERM, -signal.SIGKILL)
"""Of a process that the launcher ended, because another had failed."""
_SILENT = (
    "did not answer, as a process that is stopped or in native code, and was ended"
)


class RankError(DevrunError):
    """A process has failed; `exit_code` is its status.

    Attributes:
        keeps_output: a file is named in which something is left to read.
    """

    def __init__(
        self,
        message: str,
        exit_code: int,
        *,
        keeps_output: bool = False,
    ) -> None:
        super().__init__(message)
        self.exit_code, self.keeps_output = exit_code, keeps_output
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
        return cls(code, told if "status" in told else {}, place / "stderr", first)

    @property
    def message(self) -> str:
        return str(self.told["message"]["message"]) if self.told else ""

    @property
    def silent(self) -> bool:
        """Whether it had to be killed, as it did not answer."""
        return not self.first and self.code == -signal.SIGKILL

    @property
    def last_line(self) -> str:
        """Of its output; empty where there is none."""
        try:
            lines = self.output.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else ""


def cause(ended: Mapping[int, Ended]) -> RankError:
    """The failure, of those by rank, that the others followed from."""

    def order(rank: int) -> tuple[bool, bool, bool, float, int]:
        each = ended[rank]
        closed = not each.first and each.told.get("status", each.code) in _CLOSED
        lost, time = bool(each.told.get("lost")), each.told.get("time", 0.0)
        return lost, closed, not each.first, time, rank

    rank = min(ended, key=order)
    hung = {n: e.told["stacks"] for n, e in sorted(ended.items()) if "stacks" in e.told}
    if told := ended[rank].told:
        message = ended[rank].message
        # what several found wrong is said of the first
        rank = min(n for n, each in ended.items() if each.message == message)
        silent = [n for n, each in sorted(ended.items()) if hung and each.silent]
        said = [f"rank {rank}: {message}" if rank else message]
        said += [f"rank {n} {_SILENT}" for n in silent[:8]]
        failure = RankError("; ".join(said), int(told["status"]))
    else:
        failure = _not_told(rank, ended[rank])
    failure.stacks = "\n".join(f"rank {n}: {stacks}" for n, stacks in hung.items())
    return failure


def _not_told(rank: int, ended: Ended) -> RankError:
    """The failure of a process that was ended, or crashed, before it could say why."""
    if ended.silent:
        return RankError(f"rank {rank} {_SILENT}", 7)
    if ended.code in (-signal.SIGTERM, -AT_ONCE):
        return RankError("stopped by SIGTERM before the first iteration", 143)
    left = ended.last_line
    if ended.code > 0:
        said = f": {left}" if left else ""
        return RankError(
            f"rank {rank} ended with status {ended.code}{said}", ended.code
        )
    known = -ended.code in set(signal.Signals)
    name = signal.Signals(-ended.code).name if known else f"signal {-ended.code}"
    hint = " (if nobody did that, memory ran out: see dmesg)"
    hint = hint if ended.code == -signal.SIGKILL else ""
    where = f"; what it left is in {ended.output}" if left else ""
    return RankError(
        f"rank {rank} was ended by {name}{hint}{where}", 7, keeps_output=bool(left)
    )
