"""`Turns`: several ways of doing an update, in turn, until the fastest is known."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from time import perf_counter
from typing import Any, Generic, TypeVar

TURN, ROUNDS, SECONDS = 3, 4, 60.0
"""Updates of a turn, of which the first is not timed; turns of each way, unless they
take longer than these seconds together, but then two."""
GAIN = 0.97
"""Of the time of the first way, which another one must stay under."""

Way = TypeVar("Way", bound=Hashable)


class Turns(Generic[Way]):
    """Which of `ways` to keep: the first, unless another one is faster by 3 %.

    They are the training's own updates, whose least time counts: other work of the
    machine makes one longer, and never shorter.
    """

    def __init__(self, ways: Iterable[Way]) -> None:
        self.ways = list(ways)
        self._seconds: dict[Way, list[float]] = {way: [] for way in self.ways}
        self._left = list(self.ways)
        self._round = self._done = 0
        self._began = perf_counter()

    @property
    def way(self) -> Way:
        """That of the next update."""
        return self._left[0]

    @property
    def times(self) -> dict[Way, float]:
        """The least seconds of an update in each way that was timed."""
        return {way: min(times) for way, times in self._seconds.items() if times}

    def add(self, seconds: float) -> Way | None:
        """Add the time of an update in `way`; the way to keep, once it is known."""
        if self._done:  # the first after a change pays for that
            self._seconds[self.way].append(seconds)
        self._done = (self._done + 1) % TURN
        if self._done:
            return None
        self._left.pop(0)
        if self._left:
            return None
        self._round += 1
        self._left = self.ways[:: -1 if self._round % 2 else 1]
        late = self._round > 1 and perf_counter() - self._began > SECONDS
        if self._round < ROUNDS and not late:
            return None
        first, times = self.ways[0], self.times
        best = min(times, key=lambda way: times[way])
        return best if times[best] < GAIN * times[first] else first


def told(times: Mapping[Any, float], unit: str = "") -> str:
    """`12.3 ms plain, 9.8 ms bf16`."""
    return ", ".join(f"{1e3 * took:.1f} ms {unit}{way}" for way, took in times.items())
