"""The process of one rehearsal: what it may do, and where its last words go."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from devrun.devices.resolve import set_environment
from devrun.network import downloads_allowed
from devrun.probes.lifetime import end_safe_path, end_with_parent
from devrun.probes.notebook import Notebook
from devrun.probes.request import Grants, Request
from devrun.trust import granted

NOTES, STACK, OUTPUT = "notes", "stack", "output"
FAILED = 1
"""Exit status of a rehearsal that devrun itself did not get through."""


def main(
    request: Any, folder: str, until: float, work: Callable[[Any, Notebook, float], Any]
) -> None:
    """Do `work` on `request` and leave everything in `folder`.

    Args:
        until: `time.monotonic()` at which the stacks of all threads are written.
        work: is given the request, the notebook and the seconds that are left.
    """
    place, seconds = Path(folder), max(until - monotonic(), 1.0)
    # the user's code may say how its own processes begin
    multiprocessing.set_start_method(None, force=True)
    end_safe_path()
    end_with_parent(place)
    # the parent ends of it, and this one with it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(place / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    with (place / STACK).open("w") as stack:
        faulthandler.enable(stack)
        faulthandler.dump_traceback_later(seconds, file=stack)
        try:
            work(request, Notebook(place / NOTES), seconds)
        except BaseException:  # noqa: BLE001 - the parent reads it
            traceback.print_exc()
            os._exit(FAILED)
        faulthandler.cancel_dump_traceback_later()
        # threads and native code of the user's may not let the process end
        os.fsync(output)
        os._exit(0)


@contextmanager
def as_asked(grants: Grants) -> Iterator[None]:
    """Within, a config may do what the command line grants it, and says nothing."""
    set_environment()
    if grants.mmcv:
        from devrun.interop.mmcv_finder import install

        install()
    import torch

    from devrun.log.logger import get_logger

    torch.set_num_threads(1)  # several processes run side by side
    get_logger("devrun", log_level="ERROR")
    downloads = downloads_allowed(grants.downloads)
    with granted(grants.factories, everything=grants.everything), downloads:
        yield


def rehearse_config(request: Request, note: Notebook, seconds: float) -> None:
    """The work on a config."""
    with as_asked(request.grants):
        from devrun.rehearsal.check.rehearsal import rehearse

        rehearse(request, note, seconds)
