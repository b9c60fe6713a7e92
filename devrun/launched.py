"""A process that `devrun train --num-devices N` started, and what it owes its launcher.

The launcher and its processes know of each other by the environment that torchrun
gives, by one variable more, and by the file in which torch expects the error that ended
a process.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "DEVRUN_LAUNCHER"
"""The launcher's process id, and when it began, in seconds since 1970."""
HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that wait, in a new process, until it can answer to them."""
AT_ONCE = signal.SIGUSR2
"""By which the launcher ends its processes without their saving."""
_PARENT_DEATH = 1
"""PR_SET_PDEATHSIG of Linux."""


@dataclass(frozen=True)
class Launcher:
    """Who started this process."""

    since: float
    """When the first launcher of the run began, in seconds since 1970."""
    place: int
    """Number of this process on its machine."""
    among: int
    """Processes there."""
    cores: tuple[int, ...]
    """What this process was bound to; empty where there are too few for that."""

    def described(self) -> str:
        """How the processes share the machine."""
        cores = (
            f"bound to {len(self.cores)}" if self.cores else "not bound, as these are"
        )
        return (
            f"{self.among} processes on this machine, each {cores} of its "
            f"{os.cpu_count()} cores, with OMP_NUM_THREADS="
            f"{os.environ.get('OMP_NUM_THREADS')}"
        )


_launcher: Launcher | None = None


def launcher() -> Launcher | None:
    """The launcher of this process; None where there is none, or another's."""
    return _launcher


def join_launcher() -> None:
    """Bind this process to its launcher, with whom it ends, and to its share of cores.

    Called before torch is imported, whose threads take the cores over. Nothing happens
    in a process that no launcher of ours started.
    """
    global _launcher
    told = os.environ.pop(VARIABLE, "").split()
    if not told:
        return
    parent, since = told
    import ctypes  # which a run of one process need not pay for

    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != int(parent):
        if not os.path.exists(f"/proc/{parent}"):  # it was killed meanwhile
            os._exit(7)
        return  # a program that a process of the run started
    place, among = (int(os.environ[f"LOCAL_{name}"]) for name in ("RANK", "WORLD_SIZE"))
    cores = share_of_cores(place, among)
    if cores:
        os.sched_setaffinity(0, cores)
    _launcher = Launcher(float(since), place, among, tuple(cores))


def take_signals() -> None:
    """Let through what was held back while nobody here could answer."""
    if _launcher is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)


def tell_launcher(status: int, message: str, **facts: Any) -> bool:
    """Leave for the launcher why this process ends; whether it says that for us.

    Under torchrun, too, which then prints this as the root cause.

    Args:
        facts: JSON; `lost`: the cause is in another process.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is None:
        return False
    extra = {"timestamp": str(int(time.time())), "py_callstack": ""}
    told = {
        "message": {"message": message, "extraInfo": extra},
        "time": time.time(),
        "status": status,
        **facts,
    }
    try:
        Path(path).write_text(json.dumps(told), encoding="utf-8")
    except OSError:  # the disk is full: then we say it
        return False
    return _launcher is not None


def tell_hang() -> None:
    """Let the other processes of this machine, too, say where they stand and end."""
    if (mark := _hang()) is not None:
        with suppress(OSError):
            mark.touch()


def hang_told() -> bool:
    """Whether another process of this machine has said that the run hangs."""
    mark = _hang()
    return mark is not None and mark.exists()


def _hang() -> Path | None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    # each process has a folder of its own in that of this start
    return Path(path).parent.with_name("hang") if _launcher and path else None


def share_of_cores(place: int, among: int) -> Sequence[int]:
    """The cores of process `place` of `among`, which are free to this one together.

    Those of one socket, and the two halves of a core, stay together as far as it goes.
    Empty where there are fewer cores than processes.
    """
    free = sorted(os.sched_getaffinity(0), key=_position)
    if len(free) < among:
        return []
    return free[place * len(free) // among : (place + 1) * len(free) // among]


def _position(core: int) -> tuple[int, ...]:
    """Where a core is: socket, then physical core, then its own number."""
    found = []
    for name in ("physical_package_id", "core_id"):
        try:
            path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/{name}")
            found.append(int(path.read_text()))
        except (OSError, ValueError):  # not told, as in some containers
            found.append(0)
    return (*found, core)
