"""`launch`: one command as several processes of this machine.

They meet as those of torchrun do, which starts them on several machines. A signal
reaches each process once and they are waited for; when one fails, all end, and the
failure that was the cause is told, in one line.
"""

from __future__ import annotations

import os
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import devrun
from devrun.errors import RunInterrupted
from devrun.launched import AT_ONCE, HELD_BACK, VARIABLE
from devrun.parallel.failure import STOPPED, Ended, RankError, cause

_TO_FOLLOW = 30.0
"""Seconds that processes have to end in order after the first has."""
_TO_NOTICE = 5.0
"""And that the others have to find out that one has failed."""
_TO_LEAVE = 10.0
"""And those that did not, or were told twice to end, until they are killed."""


class Signals(Protocol):
    """Where the signals that end a run are taken down."""

    received: list[signal.Signals]

    def interrupt(self) -> None:
        """End the launch if there was one."""


def launch(words: Sequence[str], processes: int, signals: Signals) -> None:
    """Run `devrun WORDS` in several processes; return when all have ended well.

    Args:
        signals: has taken over those that end a run.

    Raises:
        RankError: a process has failed, with its status and its own last error.
        RunInterrupted: a signal ended the processes; 75 where they saved.
    """
    folder = Path(tempfile.mkdtemp(prefix="devrun-ranks-"))
    group, failure = _Group(words, processes, folder, signals), None
    try:
        failure = group.run()
    finally:
        group.clear()
        if failure is None or not failure.keeps_output:
            shutil.rmtree(folder, ignore_errors=True)
    if failure is not None and failure.exit_code in STOPPED:
        raise RunInterrupted(str(failure), failure.exit_code)
    if failure is not None:
        raise failure


class _Group:
    """The processes, from their start to their end."""

    def __init__(
        self, words: Sequence[str], count: int, folder: Path, signals: Signals
    ) -> None:
        self._command = [sys.executable, "-m", "devrun", *words]
        self._count, self._folder, self._signals = count, folder, signals
        self._passed_on = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pause = threading.Event()

    def run(self) -> RankError | None:
        """Start the processes and wait for them; the failure, if there is one."""
        self._signals.interrupt()
        self._start()
        failed = self._wait()
        ended = {
            n: Ended.of(process.returncode, place, n in failed)
            for n, process in enumerate(self._processes)
            if process.returncode and (place := self._place_of(n))
        }
        return cause(ended) if ended else None

    def clear(self) -> None:
        """End what the processes have left behind, such as workers of their loaders."""
        for process in self._processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # stuck in the kernel
                process.wait(_TO_LEAVE)

    def _start(self) -> None:
        shared = {
            **_environment(self._count),
            VARIABLE: os.getpid(),
            "WORLD_SIZE": self._count,
            "LOCAL_WORLD_SIZE": self._count,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": _free_port(),
            "TORCHELASTIC_RUN_ID": "devrun",
        }
        # they inherit the mask: none is to die of a signal that the launcher passes on
        # before it can answer
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        try:
            numbers = range(self._count)
            self._processes = [self._started(number, shared) for number in numbers]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _started(self, number: int, shared: dict[str, Any]) -> subprocess.Popen[bytes]:
        place = self._place_of(number)
        place.mkdir(parents=True)
        own = {
            **shared,
            "LOCAL_RANK": number,
            "RANK": number,
            "TORCHELASTIC_ERROR_FILE": place / "error.json",
        }
        env = {**os.environ, **{key: str(value) for key, value in own.items()}}
        # the first process writes for all; what others write goes to files
        with ExitStack() as files:
            outputs: dict[str, Any] = {
                name: files.enter_context((place / name).open("wb"))
                for name in ("stdout", "stderr")
                if number
            }
            return subprocess.Popen(
                self._command, env=env, start_new_session=True, **outputs
            )

    def _place_of(self, number: int) -> Path:
        return self._folder / str(number)

    def _wait(self) -> set[int]:
        """The processes that failed by themselves, when all have ended."""
        ending = None
        while True:
            self._pause.wait(0.1)
            self._pass_on()
            codes = [process.poll() for process in self._processes]
            failed = {number for number, code in enumerate(codes) if code}
            ending = (ending or time.monotonic()) if failed else None
            late = ending is not None and not self._has_time(codes, ending)
            if None not in codes or late:
                break
        self._end(AT_ONCE if self._passed_on else signal.SIGTERM)
        return failed

    def _has_time(self, codes: Sequence[int | None], ending: float) -> bool:
        """Whether the other processes may still end by themselves."""
        in_order = self._passed_on or any(code in STOPPED for code in codes)
        limit = _TO_FOLLOW if in_order else _TO_NOTICE
        return time.monotonic() - ending < limit

    def _pass_on(self) -> None:
        """Give the processes each signal once; the second ends them soon."""
        received = self._signals.received
        if received and not self._passed_on:
            self._send(received[0])
        if len(received) > 1 and self._passed_on < 2:
            self._end(AT_ONCE)
        self._passed_on = len(received)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)  # nothing where it has ended

    def _end(self, number: signal.Signals) -> None:
        """Send the signal, wait, and end all that is left."""
        self._send(number)
        end = time.monotonic() + _TO_LEAVE
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        self.clear()


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("localhost", 0))
        return int(held.getsockname()[1])


def _environment(processes: int) -> dict[str, Any]:
    """What all processes are to find in their environment, beside where they are."""
    cores = max(1, len(os.sched_getaffinity(0)) // processes)
    found: dict[str, Any] = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", cores)
    }
    home = str(Path(devrun.__file__).resolve().parents[1])
    if home not in (*site.getsitepackages(), site.getusersitepackages()):
        paths = [home, os.environ.get("PYTHONPATH", "")]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return found
