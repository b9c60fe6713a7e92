"""The one bus for everything observable, with the vendor's event ids."""

from __future__ import annotations

import enum
import threading
import time
from typing import Callable, List, Tuple

Params = List[Tuple[str, str]]
Callback = Callable[[int, Params], None]


class EventId(enum.Enum):
    """What can happen; the names are those of the vendor's dispatcher."""

    GRAPH_COMPILATION = 0
    CPU_FALLBACK = 1
    MEMORY_DEFRAGMENTATION = 2
    CACHE_HIT = 3
    CACHE_MISS = 4
    MARK_STEP = 5
    DEVICE_ACQUIRED = 6
    PROCESS_EXIT = 7
    CUSTOM_EVENT = 8


class EventDispatcher:
    """Calls subscribers with (nanoseconds since the epoch, [(name, text), ...])."""

    _instance: EventDispatcher | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._by_event: dict[EventId, dict[int, Callback]] = {e: {} for e in EventId}

    @classmethod
    def instance(cls) -> EventDispatcher:
        """The dispatcher of this process."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def subscribe(self, event_id: EventId, callback: Callback) -> tuple[EventId, int]:
        """Call `callback` at each such event; the result unsubscribes it."""
        with self._lock:
            self._next += 1
            self._by_event[event_id][self._next] = callback
            return event_id, self._next

    def unsubscribe(self, handle: tuple[EventId, int]) -> None:
        """Take a subscription back; a second time is harmless."""
        with self._lock:
            self._by_event[handle[0]].pop(handle[1], None)

    def publish(self, event_id: EventId, params: Params | None = None) -> None:
        """Tell every subscriber, in the order of subscription."""
        callbacks = self._by_event[event_id]
        if callbacks:
            now = time.time_ns()
            for callback in list(callbacks.values()):
                callback(now, params or [])


BUS = EventDispatcher.instance()
_acquired: list[bool] = []


def acquire() -> None:
    """The first use takes the device, which is told once."""
    if not _acquired:
        _acquired.append(True)
        BUS.publish(EventId.DEVICE_ACQUIRED)


def is_acquired() -> bool:
    """Whether the device was taken."""
    return bool(_acquired)
