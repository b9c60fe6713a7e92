"""Which process is slow: the time that each takes before they exchange anything."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from statistics import median_low
from time import perf_counter
from typing import Any

import torch
from torch import nn

_FACTOR = 1.3
"""Times the median from which a process is slow."""
_SHARE = 0.1
"""Part of an update that its excess must be, to matter: the rest of the update is what
all would still wait for."""
_LOOKS = 3
"""Times in a row that it has to be so; for the whole run, looks there must be."""
_QUIET = 60.0
"""Seconds from one warning to the next."""


class OwnTime:
    """Host seconds of this process in its updates, without waiting for the others.

    Counted are the time between two updates, in which batches are waited for, and
    the forward of the model; not the backward, in which gradients are exchanged.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None
        self._forward: float | None = None
        self._handles: list[Any] = []

    def watch(self, model: nn.Module) -> None:
        """Begin to count."""
        self.release()
        self._since = perf_counter()
        self._handles = [
            model.register_forward_pre_hook(self._enter),
            model.register_forward_hook(self._leave),
        ]

    def release(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._since = [], None

    def update_begins(self) -> None:
        if self._since is not None:
            self.seconds += perf_counter() - self._since

    def update_ends(self) -> None:
        self._since = perf_counter()

    def take(self) -> float:
        """The seconds since it was last asked."""
        taken, self.seconds = self.seconds, 0.0
        return taken

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._forward = perf_counter()

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._forward is not None:
            self.seconds += perf_counter() - self._forward
            self._forward = None


class SlowRanks:
    """Names processes that stay above 1.3 times the median."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._told = -_QUIET
        self._updates, self._looks = 0, 0
        self._seconds = 0.0
        self._sums: list[float] = []
        self._slow: Counter[int] = Counter()
        """Looks at which a rank was slow."""

    @property
    def means(self) -> list[float]:
        """Seconds an update before the exchange, by rank, of the whole run."""
        return [total / self._updates for total in self._sums]

    @property
    def slowest(self) -> dict[str, float] | None:
        """The rank that the others waited for, if that mattered in the whole run.

        Its `ms` an update before the exchange, those of the median (`median_ms`), and
        of the update (`update_ms`). None where no rank was slow both on the whole and
        at most looks: of equal processes one is always last, though not always the
        same, and one hiccup weighs much in a mean.
        """
        means = self.means
        rank, times = max(self._slow.items(), key=itemgetter(1), default=(0, 0))
        if self._looks < _LOOKS or times <= self._looks / 2:
            return None
        usual, pace = median_low(means), self._seconds / self._updates
        if not _is_slow(means[rank], usual, pace):
            return None
        shown = {"ms": means[rank], "median_ms": usual, "update_ms": pace}
        rounded = {key: round(1000 * value, 3) for key, value in shown.items()}
        return {"rank": rank, **rounded}

    def look(
        self, own: Sequence[float], updates: int, pace: float, log: logging.Logger
    ) -> None:
        """Warn where it is time.

        Args:
            own: seconds an update before the exchange, by rank.
            updates: in which that was measured.
            pace: seconds of a whole update.
        """
        self._updates += updates
        sums = self._sums or [0.0] * len(own)
        self._sums = [a + b * updates for a, b in zip(sums, own, strict=True)]
        self._seconds += pace * updates
        usual = median_low(own)
        self._looks += 1
        slow = {r for r, seconds in enumerate(own) if _is_slow(seconds, usual, pace)}
        self._slow.update(slow)
        self._seen = {rank: self._seen.get(rank, 0) + 1 for rank in slow}
        known = [rank for rank, times in self._seen.items() if times >= _LOOKS]
        if known and perf_counter() - self._told >= _QUIET:
            self._told = perf_counter()
            worst = max(known, key=lambda rank: own[rank])
            log.warning(
                "rank %d is slow, and the others wait for it: %.1f ms of each update "
                "before the exchange, %.1f ms is the median; %.1f ms are an update",
                worst,
                1e3 * own[worst],
                1e3 * usual,
                1e3 * pace,
            )


def _is_slow(own: float, usual: float, pace: float) -> bool:
    return own > _FACTOR * usual and own - usual > _SHARE * pace
