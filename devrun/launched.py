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
from pathlib import Path
from typing import Any

VARIABLE = "DEVRUN_LAUNCHER"
"""The launcher's process id."""
HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that wait, in a new process, until it can answer to them."""
AT_ONCE = signal.SIGUSR2
"""By which the launcher ends its processes without their saving."""
_PARENT_DEATH = 1
"""PR_SET_PDEATHSIG of Linux."""
_joined = False


def has_launcher() -> bool:
    """Whether a launcher of ours started this process."""
    return _joined


def join_launcher() -> None:
    """Bind this process to its launcher, with whom it ends.

    Nothing happens in a process that no launcher of ours started.
    """
    global _joined
    parent = os.environ.pop(VARIABLE, "")
    if not parent:
        return
    import ctypes  # which a run of one process need not pay for

    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != int(parent):
        if not os.path.exists(f"/proc/{parent}"):  # it was killed meanwhile
            os._exit(7)
        return  # a program that a process of the run started
    _joined = True


def take_signals() -> None:
    """Let through what was held back while nobody here could answer."""
    if _joined:
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
    return _joined
