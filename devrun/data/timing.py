"""Where the time of a training goes, as far as its loop and its loader know it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter


@dataclass
class Clock:
    """Seconds of this process so far: host time, of training alone.

    Written by the loop and by the loader of the training data, read by `IterTimerHook`.

    Attributes:
        data: waiting for batches.
        copy: bringing them to the device.
        compute: in the step itself: forward, backward and the update; and waiting for
            what a device still has to do of it.
    """

    data: float = 0.0
    copy: float = 0.0
    compute: float = 0.0
    _lap: tuple[int, float, float, float] = (0, 0.0, 0.0, 0.0)

    def settle(self, synchronize: Callable[[], None]) -> None:
        """Wait for a device that works in the background: what it does is computing."""
        began = perf_counter()
        synchronize()
        self.compute += perf_counter() - began

    def lap(self, updates: int) -> dict[str, float]:
        """Mean seconds of an update since the last lap; empty where there was none.

        Args:
            updates: done by now.
        """
        last, self._lap = self._lap, (updates, self.data, self.copy, self.compute)
        done, *spent = (now - then for now, then in zip(self._lap, last))
        names = ("wait_time", "copy_time", "compute_time")
        return {n: s / done for n, s in zip(names, spent) if done > 0}
