"""What torch.compile says about a run: where graphs broke, what was compiled again."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import Any

from devrun.devices.hpu.watch import Site

__all__ = ["CompileLog"]

USUAL = 3
"""Recompilations that every run has: another batch size, evaluation, its last batch."""
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


class CompileLog:
    """Reads torch's own records, from where they are when it is made."""

    def __init__(self) -> None:
        self._breaks = len(_reasons())
        self._failures = {code: len(said) for code, said in _failures().items()}

    def graph_breaks(self) -> Counter[tuple[str, Site]]:
        """(why, line) of each place at which a graph ends, and how often."""
        found: Counter[tuple[str, Site]] = Counter()
        for reason in _reasons()[self._breaks :]:
            frames = reason.user_stack
            site = Site(frames[-1].filename, frames[-1].lineno) if frames else None
            why = (reason.reason.strip().splitlines() or ["unknown"])[0]
            found[why, site or Site("unknown", 0)] += 1
        return found

    def recompilations(self) -> Counter[tuple[str, Site]]:
        """(last condition that failed, line) of each function with unusually many."""
        found: Counter[tuple[str, Site]] = Counter()
        for code, said in _failures().items():
            said = said[self._failures.get(code, 0) :]
            versions = {str(line).split(":")[0] for line in said}
            if len(versions) <= USUAL:
                continue
            last = str(said[-1])
            place = _PLACE.search(last)
            site = Site(code.co_filename, code.co_firstlineno)
            if place is not None:
                site = Site(place[1], int(place[2]))
            condition = last.partition(":")[2].partition("#")[0]
            found[" ".join(condition.split()), site] += len(versions)
        return found


def _reasons() -> list[Any]:
    utils = sys.modules.get("torch._dynamo.utils")  # nothing compiled without it
    return list(getattr(utils, "graph_break_reasons", ()))


def _failures() -> dict[Any, list[Any]]:
    utils = sys.modules.get("torch._dynamo.utils")
    return dict(getattr(utils, "guard_failures", {}))
