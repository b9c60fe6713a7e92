"""What the emulator counts of a training: work on the host, waits, graphs made again.

Counts are those of the emulator, which sees every operator with the line that asks for
it, so that a rehearsal says the same on each machine.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from devrun.devices.hpu.probes.remedies import MEANS, SYNC, WIDE, remedy_for
from devrun.probes import hosted
from devrun.probes.compile_log import MEANS as COMPILED
from devrun.probes.compile_log import RECOMPILATION, found_at
from devrun.probes.finding import Finding
from devrun.probes.sites import calls_model, is_library, is_own
from devrun.probes.sources import loop_around

_KINDS = {
    "cpu_fallback": "on the host",
    "host_sync": SYNC,
    "dynamic_op": SYNC,
    "float64": WIDE,
    "int64": "int64",
}
_COMPILATION, _NUMBER = "compilation", "python_value"
_OFTEN = 0.3
"""Share of the updates from which a wait of the host is in the loop."""
MODEL = "model"
_ASKS = ("if", "elif", "while", "assert")
_NOWHERE = "the backward pass or the update"
_LAYERS = "a layer or loss of torch's"


class Counts:
    """Those from now on.

    Args:
        emulator: its control module.
        lines: by `MODEL`, or a part of an operator's name, those of the config that
            bring about what no line of the user's asks for.
    """

    def __init__(self, emulator: Any, **lines: str | None) -> None:
        self._emulator, self._lines = emulator, lines
        self.updates = 0
        self._first = self._last = self._all()
        self._apart: Counter[Any] = Counter()
        """What was no part of an update."""
        self._often: Counter[Any] = Counter()
        """In how many updates each came."""
        self._compiled: list[list[Any]] = []
        """Of each update, why graphs were compiled, and where."""

    def between(self) -> None:
        """What came since the last update is no part of the next, as at log points."""
        self._last = self._all()

    def restart(self) -> None:
        """What came until now does not count."""
        self.updates = 0
        self._first = self._last = self._all()
        self._apart.clear()
        self._often.clear()
        self._compiled.clear()

    def update(self) -> None:
        """An update is over."""
        self.updates += 1
        now = self._all()
        new = now - self._last
        self._last = now
        self._often.update(new.keys())
        self._compiled.append([key[1:] for key in new if key[0] == _COMPILATION])

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Within, as in an evaluation or a save, what is counted is of no update."""
        before = self._all()
        yield
        new = self._all() - before
        self._apart += new
        self._last += new

    def findings(self, optimizers: int = 0) -> Iterator[Finding]:
        """What was found, the most frequent first.

        Args:
            optimizers: leave out waits that come once in a while, as at log points of
                a loop in which so many take turns.
        """
        often = max(2, _OFTEN * self.updates / optimizers) if optimizers else 0
        seen, visits = set(), self._all("visits")
        for key, times in (self._all() - self._first).most_common():
            kind = _KINDS.get(key[0], "")
            # a program that trains nothing has no updates
            came = self._often[key] if self.updates else times
            # what waits between epochs or in an evaluation, not in each turn of a game
            seldom = came < 2 or visits[key] <= self.updates
            if kind == SYNC and came < max(often, 1) and seldom:
                continue
            found = self._finding(kind, key, times) if kind else None
            same = found and (kind, found.site or found.why, found.remedy)
            if found and same not in seen:
                seen.add(same)
                yield found

    def _finding(self, kind: str, key: Any, times: int) -> Finding | None:
        """None where devrun itself reads a value, as at log points."""
        _, what, place = key
        severity, why = MEANS[kind]
        site = str(place) if place.line else None
        if calls_model(place.file):
            site = self._named(what) or self._lines.get(MODEL)
            why = f"in {_LAYERS}: {why}"
        elif is_own(place.file):
            if kind in (SYNC, WIDE):
                return None  # of a backward pass or a batch: it is said elsewhere
            site = self._named(what)
            why = f"in {_NOWHERE}: {why}" if site is None else why
        elif kind == WIDE and "backward" in linecache.getline(place.file, place.line):
            return None
        elif is_library(place.file):
            if kind == SYNC:
                return None  # it is not the user's to change
            site, why = self._lines.get(MODEL), f"in {place}: {why}"
        inside = max(times - self._apart[key], 0)
        often = round(inside / self.updates, 2) or None if self.updates else None
        line = linecache.getline(place.file, place.line).split()[:1]
        asks = kind == SYNC and what == "item" and line and line[0] in _ASKS
        remedy = remedy_for(kind, "branch" if asks else what)
        return Finding(severity, kind, what, why, remedy, site, often)

    def _named(self, what: str) -> str | None:
        """The line of the config that an operator comes of, by its name."""
        return next((line for part, line in self._lines.items() if part in what), None)

    def compiled_again(self) -> Iterator[Finding]:
        """A shape that changes, where nearly every update compiles, by its line if
        known; before it the lines of numbers that change in half of the updates."""
        numbers = list(self._numbers())
        yield from numbers
        later = self._compiled[self.updates // 2 :]
        if numbers or len(later) < 2 or 4 * sum(map(bool, later)) < 3 * len(later):
            return
        # until the first is over all graphs are new, also those of no update
        every = (one for each in self._compiled[1:] for one in each)
        causes = [one for one in every if one[0].startswith("shape")]
        for what, place in causes:  # one shape brings about the next
            for found in found_at(RECOMPILATION, what, [(place.file, place.line)]):
                yield found
                return
        if not causes or any(key[0] == "dynamic_op" for key in self._often):
            return  # of a size that is said elsewhere
        if any(place.file == hosted.__file__ for _, place in causes):
            return  # of a tensor that stays on the host, as is said elsewhere
        (what, _), (why, remedy) = causes[0], COMPILED[RECOMPILATION]
        why = f"somewhere in the update: {why}"
        site = self._lines.get(MODEL)
        yield Finding("slow", RECOMPILATION, what, why, remedy, site)

    def _numbers(self) -> Iterator[Finding]:
        """Those that change in half of the updates."""
        times = self._all()
        turns = (key for key in self._often if times[key] >= 2 * self.updates)
        waits = [key[2] for key in turns if _KINDS.get(key[0]) == SYNC]
        # where waits cut a loop in graphs, each of them has another of its numbers
        cut = {
            (one.file, line)
            for one in waits
            for line in loop_around(one.file, one.line)
        }
        for (kind, what, place), often in self._often.items():
            line = (place.file, place.line)
            if kind == _NUMBER and 2 * often >= self.updates and line not in cut:
                yield from found_at(RECOMPILATION, f"a number of {what}", [line])

    @property
    def launches(self) -> int:
        """Those of an update."""
        totals = self._emulator.report().totals
        return int(totals.get("launch", 0)) // max(self.updates, 1)

    def _all(self, number: str = "count") -> Counter[Any]:
        found = self._emulator.report().findings
        return Counter({(f.kind, f.what, f.site): getattr(f, number) for f in found})
