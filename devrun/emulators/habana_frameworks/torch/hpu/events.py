"""Events: marks in a stream."""

from __future__ import annotations

import time
from typing import Any

from habana_frameworks._emulation.dispatch import sync
from habana_frameworks._emulation.lazy import flush


class Event:
    """A mark. Elapsed times are the host's clock, not a Gaudi's."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        self.enable_timing = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Set the mark; flushes the lazy graph, and nobody waits."""
        flush("event record")
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for the mark."""

    def query(self) -> bool:
        """Whether the work before the mark is done."""
        return True

    def synchronize(self) -> None:
        """Wait for the mark."""
        sync("event synchronize")

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of the host's clock from this mark to `end_event`."""
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError("both events need enable_timing=True")
        if self._at is None or end_event._at is None:
            raise RuntimeError("both events must be recorded first")
        return 1000 * (end_event._at - self._at)
