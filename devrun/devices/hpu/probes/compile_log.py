"""Where torch.compile broke off graphs, and what it compiled again, for the report."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import Any

from devrun.devices.hpu.probes.watch import LAYERS, Site
from devrun.probes.sites import EMULATORS, is_foreign, is_own

USUAL = 3
"""Recompilations that every run has: another batch size, `training`, a last batch."""
_EVALUATION = "GLOBAL_STATE changed: grad_mode"
"""In the failure of a graph that an evaluation has no use for, nor training of its."""
LONGEST = 80
"""Characters of a condition that are shown."""
_ARTEFACT = re.compile(
    rf"{re.escape(EMULATORS)}|`<unknown module>\.TensorBase\.|pack_padded|pad_packed"
)
"""In the reason of a break that the emulation brings about, or torch at all times."""
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
            if _ARTEFACT.search(reason.reason):
                continue
            why = (reason.reason.strip().splitlines() or ["unknown"])[0]
            frames = reason.user_stack or ()
            site = _users([Site(f.filename, f.lineno or 0) for f in frames])
            found[why, site] += 1
        return found

    def recompilations(self) -> Counter[tuple[str, Site]]:
        """(last condition that failed, line) of each function with unusually many."""
        found: Counter[tuple[str, Site]] = Counter()
        for code, said in _failures().items():
            said = said[self._failures.get(code, 0) :]
            said = [line for line in said if _EVALUATION not in str(line)]
            versions = {str(line).split(":")[0] for line in said}
            if len(versions) <= USUAL:
                continue
            last = str(said[-1])
            places = [Site(file, int(line)) for file, line in _PLACE.findall(last)]
            site = _users([Site(code.co_filename, code.co_firstlineno), *places])
            condition = " ".join(last.partition(":")[2].partition("#")[0].split())
            if len(condition) > LONGEST:  # a value of any length may be in it
                condition = condition[: LONGEST - 3] + "..."
            found[condition, site] += len(versions)
        return found


def _users(stack: list[Site]) -> Site:
    """The innermost line of `stack` that a user wrote."""
    users = (s for s in reversed(stack) if not (is_foreign(s.file) or is_own(s.file)))
    return next(users, LAYERS)


def _reasons() -> list[Any]:
    utils = sys.modules.get("torch._dynamo.utils")  # nothing compiled without it
    return list(getattr(utils, "graph_break_reasons", ()))


def _failures() -> dict[Any, list[Any]]:
    utils = sys.modules.get("torch._dynamo.utils")
    return dict(getattr(utils, "guard_failures", {}))
