"""How the processes of a check begin and end.

None outlives the command, however that ends, and none looks into the current folder
for Python's own modules while it begins.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

PARTS = 8
"""Of a rehearsal's time, an update, stage or loop of the user's may take a part."""
_SAFE = "PYTHONSAFEPATH"
_HERE = "devrun check"


@contextmanager
def safe_path() -> Iterator[None]:
    """Within, a process that begins does not import from the current folder.

    Its interpreter is started by `python -c`, which would: a `random.py` beside a
    config would run. Python 3.10 has no such switch.
    """
    if os.environ.setdefault(_SAFE, _HERE) != _HERE:
        yield
        return
    try:
        yield
    finally:
        end_safe_path()


def end_safe_path() -> None:
    """Programs that the user's code starts begin as they would without a check."""
    if os.environ.get(_SAFE) == _HERE:
        del os.environ[_SAFE]


def end_with_parent(folder: Path | None = None) -> None:
    """End this process when the one that started it is gone; remove `folder` then."""
    threading.Thread(target=_wait, args=(folder,), daemon=True).start()


def _wait(folder: Path | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


class NeverEnds(BaseException):
    """Raised where the user's code is when its time is over; it catches `Exception`."""


@contextmanager
def timed(seconds: float) -> Iterator[None]:
    """Within, `NeverEnds` is raised after `seconds`."""
    if signal.getitimer(signal.ITIMER_REAL)[0]:  # it is inside another
        yield
        return

    def over(*_: Any) -> None:
        raise NeverEnds

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def trained(seconds: float) -> Iterator[None]:
    """Within, `NeverEnds` is raised by an optimizer's step `seconds` after the first.

    A signal might come while the engine of autograd calls Python, and end the process.
    """
    end = math.inf

    def stepped(*_: Any) -> None:
        nonlocal end
        now = time.monotonic()
        end = min(end, now + seconds)
        if now >= end:
            raise NeverEnds

    hook = register_optimizer_step_post_hook(stepped)
    try:
        yield
    finally:
        hook.remove()
