"""Which of several processes that ended was the cause, and what it said."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from devrun.errors import DevrunError
from devrun.launched import AT_ONCE

FINAL = (2, 3, 5, 9, 75, 130, 143)
"""Statuses that another start would end with too, or that mean to stop."""
STOPPED = (75, 130, 143)
_CLOSED = (143, -signal.SIGTERM, -signal.SIGKILL)
"""Of a process that the agent ended, because another had failed."""
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


def cause(
    failures: Mapping[int, ProcessFailure],
    first: Iterable[int],
    outputs: Mapping[int, str],
) -> RankError:
    """The failure that the others followed from.

    Args:
        failures: by rank.
        first: ranks that had failed before the agent ended the others.
        outputs: by rank, the file with what it wrote to stderr.
    """
    first = set(first)

    def order(rank: int) -> tuple[bool, bool, bool, float, int]:
        failure = failures[rank]
        told = failure.error_file_data
        ended = rank not in first
        closed = ended and told.get("status", failure.exitcode) in _CLOSED
        return bool(told.get("lost")), closed, ended, told.get("time", 0.0), rank

    rank = min(failures, key=order)
    silent = [
        other
        for other, failure in sorted(failures.items())
        if other not in first and failure.exitcode == -signal.SIGKILL
    ]
    if rank in silent:
        found = _SILENT, 7, False
    else:
        found = _described(failures[rank], outputs.get(rank))
    same = [
        other
        for other, failure in failures.items()
        if failure.error_file_data.get("message") and _message(failure) == found[0]
    ]
    rank = min([rank, *same])
    message, status, keeps = found
    told = {other: failure.error_file_data for other, failure in failures.items()}
    hung = {other: each["exchange"] for other, each in told.items() if "stacks" in each}
    if hang := _hang(hung, silent):
        message = f"{message}; {hang}"
    whole = "status" in failures[rank].error_file_data
    link = ": " if whole else " "
    error = RankError(
        f"rank {rank}{link}{message}" if rank or not whole else message,
        status,
        lost=bool(told[rank].get("lost")),
        keeps_output=keeps,
    )
    error.stacks = "\n".join(
        f"rank {other}: {each['stacks']}"
        for other, each in sorted(told.items())
        if "stacks" in each
    )
    return error


def _hang(exchanges: Mapping[int, str], silent: Sequence[int]) -> str:
    """Who waits in which exchange, who did not come to it, and who said nothing."""
    waiting = [rank for rank, exchange in sorted(exchanges.items()) if exchange]
    others = [str(rank) for rank in sorted(exchanges) if rank not in waiting]
    if not exchanges:
        return ""
    parts = [f"rank {rank} waits in {exchanges[rank]}" for rank in waiting[:4]]
    if waiting and others:
        plural = "s" if len(others) > 1 else ""
        parts.append(f"rank{plural} {', '.join(others[:8])} did not come to it")
    parts += [f"rank {rank} {_SILENT}" for rank in silent[:8]]
    return ", ".join(parts)


def _message(failure: ProcessFailure) -> str:
    message = failure.error_file_data["message"]
    return str(message["message"]) if isinstance(message, dict) else ""


def _described(failure: ProcessFailure, output: str | None) -> tuple[str, int, bool]:
    """(message, status, whether that names the file `output`)."""
    told: dict[str, Any] = failure.error_file_data
    if "status" in told:
        return _message(failure), int(told["status"]), False
    left, tail = "", _tail(output)
    code = failure.exitcode
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if code in (-signal.SIGTERM, -AT_ONCE):
            return "stopped by SIGTERM before the first iteration", 143, False
        if tail:
            left = f"; what it left is in {output}"
        hint = " (if nobody did that, memory ran out: see dmesg)"
        hint = hint if code == -signal.SIGKILL else ""
        return f"was ended by {name}{hint}{left}", 7, bool(tail)
    if tail:
        left = f": {tail}"
    return f"ended with status {code}{left}", code, False


def _tail(path: str | None) -> str:
    """The last line of a file; empty where there is none."""
    try:
        lines = Path(path or "").read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
