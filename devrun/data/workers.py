"""Loader workers: their signals, their shutdown, and messages about one that died."""

from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401 - its exit function goes before ours
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Those that end a run in order."""
_started: weakref.WeakSet[Any] = weakref.WeakSet()


class WorkerInit:
    """The `worker_init_fn` of a worker that leaves the signals to its parent.

    Terminals and schedulers signal the whole group: a worker that obeyed would end
    the run before the parent could save. Picklable if `user` is.
    """

    def __init__(self, user: Callable[[int], Any] | None = None) -> None:
        self.user = user

    def __call__(self, worker_id: int) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        # what `deferred` held back is dropped
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if self.user is not None:
            self.user(worker_id)


@contextmanager
def deferred() -> Iterator[None]:
    """Workers started in this block get no stop signal before `WorkerInit` runs.

    A worker inherits the mask with its birth; the signal reaches this process when
    the block ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def watch(iterator: Any) -> None:
    """See to it that the workers of a DataLoader iterator can be ended.

    They ignore the SIGTERM with which torch and, at exit, multiprocessing would end
    them; the latter would then wait for ever.
    """
    for worker in _workers(iterator):
        worker.terminate = worker.kill
        _started.add(worker)


def stop(iterator: Any) -> None:
    """End the workers of `iterator` now; one that hangs is killed after 5 seconds."""
    for name in ("_shutdown_workers", "close"):  # of torch's, of a generator
        if (end := getattr(iterator, name, None)) is not None:
            end()


def describe_dead(iterator: Any, patience: float = 0.0) -> str | None:
    """Which workers died and of what, or None when all live or ended well.

    Each is given `patience` seconds to end, for one that is just about to.
    """
    dead = []
    for number, worker in enumerate(_workers(iterator)):
        if patience:
            with suppress(RuntimeError):  # torch tells of the death wherever we are
                worker.join(patience)
        code = worker.exitcode
        if code is None:
            continue
        how = f"exit status {code}"
        if code < 0:
            known = {item.value for item in signal.Signals}
            how = signal.Signals(-code).name if -code in known else f"signal {-code}"
        dead.append(f"worker {number} (pid {worker.pid}) died of {how}")
    return ", ".join(dead) or None


def pids(iterator: Any) -> list[int]:
    """The process ids of the workers of `iterator`."""
    return [worker.pid for worker in _workers(iterator)]


def _workers(iterator: Any) -> list[Any]:
    # torch has no public name for them, and the iterator is its owner
    return list(getattr(iterator, "_workers", ()))


@contextmanager
def _without_sigchld() -> Iterator[None]:
    """torch's SIGCHLD handler would raise, here, about the worker just killed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, previous)


def _kill_all() -> None:
    alive = [worker for worker in list(_started) if worker.is_alive()]
    with _without_sigchld():
        for worker in alive:
            worker.kill()
        for worker in alive:
            worker.join()


atexit.register(_kill_all)
