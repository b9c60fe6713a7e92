"""`WatchdogHook`: ends a run that makes no progress, with its stacks in the log."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from devrun.config.numbers import is_finite
from devrun.errors import ConfigError, HangError
from devrun.hooks.base import Hook, Priority
from devrun.launched import tell_launcher
from devrun.registry import HOOKS
from devrun.run import Run

_LOOKS = 10
"""How often in a time-out it looks, and at least once a second."""


@HOOKS.register_module()
class WatchdogHook(Hook):
    """Ends the process with status 7 when nothing has moved for `timeout` seconds.

    What counts as a move is a counter of the runner: an iteration, or a step of an
    evaluation. A thread reads them, so that an iteration costs nothing. Before the end
    the stacks of all threads go to the log, in each process of the run.

    Where a C extension holds the interpreter's lock, no thread of Python can act:
    then faulthandler writes the stacks to stderr after twice the time, and ends the
    process with its own status, 1.

    Args:
        timeout: seconds without a move; longer than the longest save.
        first_timeout: the same until the first iteration is over, which may compile;
            by default ten times as long.
    """

    priority: Any = Priority.HIGHEST

    def __init__(
        self, timeout: float = 1800.0, first_timeout: float | None = None
    ) -> None:
        first = 10 * timeout if first_timeout is None else first_timeout
        for name, value in (("timeout", timeout), ("first_timeout", first)):
            if not (is_finite(value) and value > 0):
                raise ConfigError.of(
                    name, f"must be a number of seconds above 0, got {value!r}"
                )
        self.timeout = float(timeout)
        self.first_timeout = float(first)
        self.on_hang: list[Callable[[HangError], None]] = []
        """Called before the process ends."""
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def before_run(self, runner: Run) -> None:
        self._stop()
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(runner,), name="devrun-watchdog", daemon=True
        )
        faulthandler.dump_traceback_later(2 * self.first_timeout, exit=True)
        self._thread.start()

    def after_run(self, runner: Run) -> None:
        self._stop()

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._thread is None:
            return
        self._over.set()
        self._thread.join()
        self._thread = None

    def _watch(self, runner: Run) -> None:
        start = seen = _moves(runner)
        waited, pause = 0.0, min(self.timeout, self.first_timeout, _LOOKS) / _LOOKS
        try:
            while not self._over.wait(pause):
                now = _moves(runner)
                waited = waited + pause if now == seen else 0.0
                seen = now
                limit = self.first_timeout if now == start else self.timeout
                faulthandler.dump_traceback_later(2 * limit, exit=True)
                if waited >= limit:
                    self._end(runner, waited)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _end(self, runner: Run, waited: float) -> NoReturn:
        error = HangError(
            f"no iteration for {waited:.0f} s (epoch {runner.epoch + 1}, iteration "
            f"{runner.iter + 1}): the run hangs; the stacks are in the log, and "
            "`watchdog.timeout` sets the time"
        )
        try:
            stacks = _stacks()
            runner.logger.critical("%s\n%s", error, stacks)
            for call in self.on_hang:
                call(error)
            tell_launcher(error.exit_code, str(error), stacks=stacks)
        finally:
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(error.exit_code)


def _stacks() -> str:
    """Of all threads of this process, as text."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return f"process {os.getpid()}\n{file.read()}"


def _moves(runner: Run) -> tuple[Any, ...]:
    return (
        runner.mode,
        runner.epoch,
        runner.iter,
        runner.inner_iter,
        runner.eval_steps,
    )
