"""Where torch.compile broke off graphs, and what it compiled again."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from devrun.devices.hpu.probes.remedies import (
    GRAPH_BREAK,
    MEANS,
    RECOMPILATION,
    remedy_for,
)
from devrun.probes.finding import Finding
from devrun.probes.sites import EMULATORS, is_library, user_line

USUAL = 3
"""Recompilations that every run has: another batch size, `training`, a last batch."""
_EVALUATION = "GLOBAL_STATE changed: grad_mode"
"""In the failure of a graph that an evaluation has no use for, nor training of its."""
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

    def findings(self) -> Iterator[Finding]:
        """Each place at which a graph ends, and each function with many graphs."""
        for reason in _reasons()[self._breaks :]:
            if not _ARTEFACT.search(reason.reason):
                why = (reason.reason.strip().splitlines() or ["unknown"])[0]
                stack = [(f.filename, f.lineno or 0) for f in reason.user_stack or ()]
                if (found := _finding(GRAPH_BREAK, why, stack)).site:
                    yield found  # else within torch, which goes on from the user's
        for code, said in _failures().items():
            said = said[self._failures.get(code, 0) :]
            said = [str(line) for line in said if _EVALUATION not in str(line)]
            if len({line.partition(":")[0] for line in said}) > USUAL:
                places = [(file, int(line)) for file, line in _PLACE.findall(said[-1])]
                stack = [(code.co_filename, code.co_firstlineno), *places]
                # the last condition that failed, with a value of any length in it
                what = said[-1].partition(":")[2].partition("#")[0]
                yield _finding(RECOMPILATION, " ".join(what.split())[:80], stack)


def _finding(kind: str, what: str, stack: list[tuple[str, int]]) -> Finding:
    severity, why = MEANS[kind]
    site, remedy = user_line(reversed(stack)), remedy_for(kind, what)
    if site is not None and is_library(site):
        severity = "advice"  # it is not the user's to change
    return Finding(severity, kind, what, why, remedy, site)


def _reasons() -> list[Any]:
    utils = sys.modules.get("torch._dynamo.utils")  # nothing compiled without it
    return list(getattr(utils, "graph_break_reasons", ()))


def _failures() -> dict[Any, list[Any]]:
    utils = sys.modules.get("torch._dynamo.utils")
    return dict(getattr(utils, "guard_failures", {}))
