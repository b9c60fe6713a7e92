"""Runs that end without a word: stacks for their log, and a mark at the next start."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devrun.cli.record import write_facts
from devrun.files import disk_errors, read_json, unfollowed
from devrun.lock import LOST


@contextmanager
def crash_stacks(log_file: Path | None) -> Iterator[None]:
    """Meanwhile a crash of native code (SIGSEGV, SIGBUS, SIGFPE, SIGILL, an abort)
    writes the stacks of all threads to the log file, or to stderr without one."""
    before = faulthandler.is_enabled()
    if log_file is None:
        if not before and sys.__stderr__ is not None:
            faulthandler.enable(sys.__stderr__)
        yield
        return
    with disk_errors(f"cannot write {str(log_file)!r}", "; choose another work_dir"):
        file = open(log_file, "a", encoding="utf-8", opener=unfollowed)  # noqa: SIM115
    with file:
        faulthandler.enable(file)  # it keeps the descriptor
        try:
            yield
        finally:
            faulthandler.disable()
            if before and sys.__stderr__ is not None:
                faulthandler.enable(sys.__stderr__)


def mark_lost(work_dir: Path) -> str | None:
    """The fate of a run whose `run.json` still has the status `running`.

    The caller holds the lock of `work_dir`, so that run is gone: the file says so from
    now on. None where there is no such run.
    """
    path = work_dir / "run.json"
    facts = _facts(path)
    if facts is None or facts.get("status") != "running":
        return None
    log = work_dir / f"{facts.get('timestamp')}.log"
    how = f"{LOST}: {log} ends with the stack of a crash"
    facts.update(status="lost", exit_code=None, error=how)
    write_facts(path, facts)
    return f"the run in {work_dir} that started at {facts.get('started')} {how}"


def _facts(path: Path) -> dict[str, Any] | None:
    try:
        facts = read_json(path)
    except (OSError, ValueError):  # of no run, or not ours
        return None
    return facts if isinstance(facts, dict) else None
