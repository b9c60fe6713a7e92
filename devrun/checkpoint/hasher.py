"""`Hasher`: a sha256 that is taken beside the reads or writes."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType

Piece = bytes | bytearray | memoryview
_SMALL = 1 << 16


class Hasher:
    """Context manager: a sha256, which takes large pieces in a thread of its own.

    hashlib lets go of the interpreter's lock over large data, so that the hash takes
    no time of who reads or writes. (concurrent.futures would refuse work while the
    interpreter waits at exit for the last write in the background.)
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._pieces: SimpleQueue[Piece | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Hasher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finish()

    def update(self, piece: Piece) -> None:
        """Hash it soon: it must not change before `hexdigest`."""
        if self._thread is None and len(piece) > _SMALL:
            self._start()
        if self._thread is None:
            self._sha256.update(piece)
        else:
            self._pieces.put(piece)

    def hexdigest(self) -> str:
        """Of all pieces so far."""
        self._finish()
        return self._sha256.hexdigest()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="devrun-sha256")
        # none begins while the interpreter ends: then without
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def _finish(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._pieces.put(None)
            thread.join()

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._sha256.update(piece)
