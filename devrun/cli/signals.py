"""Signals that end a run: the first asks it to stop in order, the second ends it."""

from __future__ import annotations

import contextlib
import multiprocessing  # not later: a signal may come while it is imported
import os
import signal
import stat
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn, Protocol

from typing_extensions import Self

from devrun.errors import RunInterrupted
from devrun.launched import AT_ONCE, tell_launcher
from devrun.text import one_line

WATCHED = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
"""Schedulers warn by SIGUSR1; SIGHUP means that the terminal was closed."""


class Stoppable(Protocol):
    """A runner, as far as a signal is concerned."""

    def request_stop(self, reason: Any, *, alone: bool = False) -> None: ...


class _Watching:
    """Context manager in which the signals that end a run go to `_handle`."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.Signals[name] for name in WATCHED):
            # what whoever started us had ignored (nohup, a job in the background)
            # stays ignored
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError


class StopSignals(_Watching):
    """Context manager that watches the signals which end a run.

    The handler only sets a flag on the runner given to `attach`: the iteration in
    progress is finished, and whoever runs the loop saves. Before that there is
    nothing to save, and the process ends at once: an exception would come to the line
    that happens to run, and an import or a constructor of C++ swallows it, takes it
    for its own failure or aborts. A second one ends the process at once too; with an
    elastic launcher that is AT_ONCE alone, as one signal may come both from the
    launcher and from who sent it to all processes.

    Args:
        on_leave: called with status and message before the process ends at once.
    """

    def __init__(self, on_leave: Sequence[Callable[[int, str], None]] = ()) -> None:
        super().__init__()
        self._elastic = "TORCHELASTIC_RUN_ID" in os.environ
        self.received: signal.Signals | None = None
        self._runner: Stoppable | None = None
        self._pid = os.getpid()
        self._on_leave = on_leave

    def __enter__(self) -> Self:
        super().__enter__()
        if self._elastic:
            self._before[AT_ONCE] = signal.signal(AT_ONCE, self._handle)
        return self

    def attach(self, runner: Stoppable) -> None:
        """From now on a signal stops `runner`."""
        self._runner = runner

    def stopped(self, reason: str | None) -> bool:
        """Whether a runner's `stop_reason` is a signal, to any of its processes."""
        if reason not in WATCHED:
            return False
        self.received = signal.Signals[reason]
        return True

    def interruption(self, reached: str, saved: str | None) -> RunInterrupted:
        """The error that ends a run which a signal, or the end of its time, stopped.

        Status 75 when it was saved and may be started again at once (all but
        SIGINT); 130 after Ctrl-C; 143 when nothing could be saved.
        """
        number = self.received or signal.SIGTERM
        by = self.received.name if self.received else "max_time"
        what = f"stopped by {by} after {reached}"
        if saved is None:
            return RunInterrupted(f"{what}; nothing saved", _unsaved(number))
        code = 130 if number == signal.SIGINT else 75
        hint = "go on with --resume-from auto"
        return RunInterrupted(f"{what}; saved {saved}; {hint}", code)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked data worker: the signal is for it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        name = signal.Signals(number)
        if name.name == "SIGHUP":
            _let_go_of_the_terminal()
            if self.received is not None:  # the kernel and the shell both send it
                return
        if number == AT_ONCE or self.received is not None:
            if self._elastic and number != AT_ONCE:
                return
            first = self.received or signal.SIGTERM
            message = f"{first.name} again: left at once"
            _note(message)
            self._end(_unsaved(first), message)
        self.received = name
        if self._runner is None:
            early = _too_early(name)
            if not tell_launcher(early.exit_code, str(early)):
                _note(f"interrupted: {early}")
            self._end(early.exit_code, str(early))
        self._runner.request_stop(name.name, alone=True)
        _note(f"{name.name}: finishing this iteration; once more leaves at once")

    def _end(self, status: int, message: str) -> NoReturn:
        for call in self._on_leave:
            try:
                call(status, message)
            except OSError as error:
                _note(f"could not record it: {error}")
        _leave(status)


class TakenDown(_Watching):
    """Context manager that keeps what signals came, for processes to be given them."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[signal.Signals] = []

    def interrupt(self) -> None:
        """Raise if a signal came."""
        if self.received:
            raise _too_early(self.received[0])

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number)
        if name.name == "SIGHUP":
            _let_go_of_the_terminal()
            if name in self.received:
                return
        self.received.append(name)


def _too_early(number: signal.Signals) -> RunInterrupted:
    return RunInterrupted(
        f"stopped by {number.name} before the first iteration", _unsaved(number)
    )


def _unsaved(number: int) -> int:
    return 130 if number == signal.SIGINT else 143


def _leave(status: int) -> NoReturn:
    """End this process now; data workers, which would wait for it, are killed."""
    # torch's handler raises at the death of a worker
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    children = multiprocessing.active_children()
    for child in children:
        child.kill()
    for child in children:
        child.join(1)
    os._exit(status)


def _let_go_of_the_terminal() -> None:
    """From now on every write to it would fail, and end the run before it is saved."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it may be closed
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(null, descriptor)
    os.close(null)


def _note(text: str) -> None:
    # Not through sys.stderr: the signal may have come in the middle of a write to it.
    os.write(2, f"devrun: {one_line(text)}\n".encode())
