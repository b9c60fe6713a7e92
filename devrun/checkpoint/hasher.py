"""`Hasher`: hashes in a thread of its own, beside the writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Any

__all__ = ["Hasher"]


class Hasher:
    """Context manager with a thread that makes the calls it is given, in order.

    hashlib lets go of the interpreter's lock over large data, so that the hash takes
    no time of the writer's. (concurrent.futures would refuse work while the
    interpreter waits at exit for the last write in the background.)
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Hasher:
        thread = threading.Thread(target=self._work, name="devrun-sha256")
        try:
            thread.start()
        except RuntimeError:  # no thread begins while the interpreter ends
            return self
        self._thread = thread
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()

    def call(self, function: Callable[[Any], Any], argument: Any) -> None:
        """Call it soon."""
        if self._thread is None:
            function(argument)
        else:
            self._calls.put(lambda: function(argument))

    def wait(self) -> None:
        """Return when all calls so far have been made."""
        if self._thread is not None:
            done = threading.Event()
            self._calls.put(done.set)
            done.wait()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
