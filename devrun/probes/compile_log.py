"""Where torch.compile broke off graphs, and what it compiled again."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from devrun.probes.finding import Finding
from devrun.probes.sites import EMULATORS, is_library, user_line
from devrun.python38 import unprefixed

RECOMPILATION, GRAPH_BREAK = "compiled again", "graph break"
MEANS = {
    RECOMPILATION: (
        "a graph is compiled again for each new shape or number",
        "keep shapes the same from update to update, and numbers that change in "
        "tensors",
    ),
    GRAPH_BREAK: (
        "torch.compile ends its graph here, goes on in Python and begins another",
        "write it so that it can be traced: no prints, no branches on values; or take "
        "it out of the compiled module",
    ),
}
"""By kind of finding, what happens there and what to do."""
USUAL = 3
"""Recompilations that every run has: another batch size, `training`, a last batch."""
_EVALUATION = "GLOBAL_STATE changed: grad_mode"
"""In the failure of a graph that an evaluation has no use for, nor training of its."""
_ARTEFACT = re.compile(
    rf"{re.escape(EMULATORS)}|`<unknown module>\.TensorBase\."
    r"|pack_padded|pad_packed|_ctc_loss|sys\._getframe|a super\(\) attribute"
    r"|wrap RNN, GRU, or LSTM|step_unsupported"
)
"""In the reason of a break that the emulation brings about, or torch at all times; the
last is of one in a function that is called there, and does not say which."""
_UNLIKE = f"{_EVALUATION}|\\._host\\.storage_offset"
"""In the failures of graphs that an evaluation brings about, or what is in an emulated
tensor."""
_BREAKS, _AGAIN = "graph_break_reasons", "guard_failures"
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


class CompileLog:
    """Reads torch's own records, from where they are when it is made."""

    def __init__(self) -> None:
        self._breaks = len(_kept(_BREAKS))
        self._skipped = _skipped()
        self._failures = {code: len(said) for code, said in _kept(_AGAIN).items()}

    def findings(self) -> Iterator[Finding]:
        """Each place at which a graph ends, and each function with many graphs."""
        breaks = [
            (one.reason, [(f.filename, f.lineno or 0) for f in one.user_stack or ()])
            for one in list(_kept(_BREAKS))[self._breaks :]
        ]
        breaks += [
            (
                one.fail_reason,
                [(one.fail_user_frame_filename, one.fail_user_frame_lineno)],
            )
            for one in _skipped()
            if one not in self._skipped
        ]
        for reason, stack in breaks:
            if not _ARTEFACT.search(reason):
                what, remedy = _words(reason)
                yield from found_at(GRAPH_BREAK, what, stack, remedy)
        for code, said in list(_kept(_AGAIN).items()):
            said = said[self._failures.get(code, 0) :]
            said = [str(line) for line in said if not re.search(_UNLIKE, str(line))]
            if len({line.partition(":")[0] for line in said}) > USUAL:
                places = [(file, int(line)) for file, line in _PLACE.findall(said[-1])]
                stack = [(code.co_filename, code.co_firstlineno), *places]
                # the last condition that failed, with a value of any length in it
                what = said[-1].partition(":")[2].partition("#")[0]
                yield from found_at(RECOMPILATION, " ".join(what.split())[:80], stack)


def found_at(
    kind: str, what: str, calls: Sequence[tuple[str, int]], remedy: str = ""
) -> Iterator[Finding]:
    """One at the user's line; none of what a library does, which goes on by itself.

    Args:
        calls: file and line of each, the outermost first.
    """
    why, usual = MEANS[kind]
    site = user_line(reversed(calls))
    if site is not None and not is_library(site):
        yield Finding("slow", kind, what, why, remedy or usual, site)


def _words(reason: str) -> tuple[str, str]:
    """Dynamo's reason in one clause, and its first hint."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    hints = [unprefixed(line, "Hint: ") for line in lines if line.startswith("Hint:")]
    what = lines[0] if lines else "unknown"
    if what.startswith("generic_jump"):
        return "a branch on a value", "torch.where(condition, a, b), or torch.cond"
    explained = [one for one in lines if one.startswith("Explanation:")]
    if what.startswith("Failed to trace builtin") and explained:
        what = explained[0].partition("builtin operator ")[2] or what
    return what, hints[0] if hints else ""


def _skipped() -> list[Any]:
    """Records of functions that are not compiled at all: a graph broke in a loop."""
    every = _kept("get_compilation_metrics")
    return [
        one
        for one in (every() if every else ())
        if getattr(one, "fail_type", "") == "Unsupported"
        and one.fail_user_frame_filename
    ]


def _kept(name: str) -> Any:
    """What torch's compiler keeps as `name`; nothing where nothing was compiled."""
    return getattr(sys.modules.get("torch._dynamo.utils"), name, {})
