"""Work in a forked process, which may change everything, abort, or never end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from typing import IO, Any

from devrun.blame import cause_of
from devrun.probes.lifetime import end_with_parent

SECONDS = 120.0


def aside(work: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """What `work` returns, which must be plain data; nothing here is changed by it.

    Raises:
        RuntimeError: it raised, ended its process, or took longer than `seconds`.
    """
    with tempfile.TemporaryFile() as said:
        return _result(work, seconds, said)


def _result(work: Callable[[], Any], seconds: float, said: IO[bytes]) -> Any:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=(work, sender, said), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise RuntimeError(f"it took more than {seconds:g} s")
        done, result = receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        name = signal.Signals(-code).name if code < 0 else f"status {code}"
        said.seek(0)
        last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
        words = filter(None, (f"its process ended ({name})", last))
        raise RuntimeError(": ".join(words)) from None
    finally:
        process.kill()
        process.join()
    if not done:
        raise RuntimeError(result)
    return result


def _do(work: Callable[[], Any], sender: Any, said: IO[bytes]) -> None:
    os.dup2(said.fileno(), 2)  # native code tells there why it aborts
    end_with_parent()
    try:
        result = True, work()
    except BaseException as error:  # noqa: BLE001 - it is told
        result = False, cause_of(error)
    sender.send(result)
    sender.close()
