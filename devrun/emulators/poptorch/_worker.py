"""The parent's end of the process that an `AsynchronousDataAccessor` loads in."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

from torch import multiprocessing

from poptorch._args_parser import rebuilt
from poptorch._errors import Error
from poptorch._loading import Job, Ring, main
from poptorch._logging import logger
from poptorch.enums import SharingStrategy

_METHODS = {
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
"""How the process starts; by others as a new Python."""
_PATIENCE = 10.0
"""Seconds for the process to end by itself, and then for each signal to act."""


class Worker:
    """Starts the process; it ends with this object, or with the program.

    Raises:
        Error: The first element can't be made.
    """

    def __init__(self, job: Job, strategy: SharingStrategy) -> None:
        context: Any = multiprocessing.get_context(_METHODS.get(strategy, "spawn"))
        # Of no effect but on time, and that only before the server has started.
        context.set_forkserver_preload(["__main__", "torch"])
        logger.debug("AsynchronousDataAccessor parent process: %d", os.getpid())
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=main, args=(job, theirs, self._pipe))
        process.start()
        theirs.close()
        self._process = process
        self.stop = Finalize(self, _stop, (process, self._pipe), exitpriority=10)
        self._iteration = 0
        self._ended = self._used = False
        self._held: int | None = None
        kind, _, value, ring = self._receive()
        if kind == "error":
            self.stop()
            raise Error(
                "AsynchronousDataAccessor worker thread failed to start: "
                f"{type(value).__name__}: {value}"
            ) from value
        self._template = value
        self._data_buffers: Ring = ring

    def begin(self) -> None:
        """Ask for a new pass, unless nothing was taken of the present one."""
        if self._iteration and not self._used:
            return
        self._release()
        self._iteration += 1
        self._ended = self._used = False
        with suppress(
            ConnectionError
        ):  # why it has ended is told with the next element
            self._pipe.send(self._iteration)

    def next(self) -> Any:
        """The next element; the one before may be overwritten.

        Raises:
            StopIteration: There is none.
            AssertionError: The process failed; the cause is what the dataset raised.
        """
        self._release()
        while not self._ended:
            kind, iteration, value, rows = self._receive()
            if kind == "error":
                raise AssertionError(
                    "An error occurred in the data fetcher: "
                    f"{type(value).__name__}: {value}"
                ) from value
            if kind == "end":
                self._ended = iteration == self._iteration
                continue
            self._held = value
            if iteration == self._iteration:
                self._used = True
                tensors = self._data_buffers.read(value, rows)
                return rebuilt(self._template, iter(tensors))
            self._release()
        self._used = True
        raise StopIteration

    def _release(self) -> None:
        if self._held is not None:
            self._data_buffers.indices_mem[self._held] = False
            self._held = None

    def _receive(self) -> tuple[str, int, Any, Any]:
        wait([self._pipe, self._process.sentinel])
        try:
            if self._pipe.poll():
                return self._pipe.recv()  # type: ignore[no-any-return]
        except (EOFError, ConnectionError):
            self._process.join(_PATIENCE)
        status = self._process.exitcode
        gone = RuntimeError(f"the worker process ended with exit code {status}")
        return "error", 0, gone, None


def _stop(process: Any, pipe: Connection) -> None:
    """End the process, by force if it does not end."""
    with suppress(OSError):  # it has ended already
        pipe.send(None)
    pipe.close()
    process.join(_PATIENCE)
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.exitcode is None:
            os.kill(process.pid, number)
            process.join(_PATIENCE)
