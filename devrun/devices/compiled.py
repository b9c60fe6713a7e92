"""What torch.compile logs about a run: where graphs broke, what was compiled again."""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from typing import Any

from devrun.devices.hpu.watch import LAYERS, Site, is_foreign, is_own
from devrun.hooks.base import Hook, Priority
from devrun.models.traced import NAME
from devrun.run import Run
from devrun.text import joined

logger = logging.getLogger("devrun")

USUAL = 3
"""Recompilations that every run has: another batch size, evaluation, its last batch."""
LONGEST = 80
"""Characters of a condition that are shown."""
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


class CompileHook(Hook):
    """Says what was compiled in the first updates, and at the end what came since."""

    priority = Priority.LOWEST

    def __init__(self, after: int = 10) -> None:
        self._after = after
        self._log = CompileLog()
        self._before, self._said = _compilations(), ""

    def before_run(self, runner: Run) -> None:
        self._log, self._before, self._said = CompileLog(), _compilations(), ""

    def after_train_iter(self, runner: Run) -> None:
        if runner.state.updates == self._after:
            self._tell()

    def after_run(self, runner: Run) -> None:
        self._tell()

    def _tell(self) -> None:
        known = set(map(id, self._before))  # which it keeps alive
        made = [one for one in _compilations() if id(one) not in known]
        seconds = sum(one.entire_frame_compile_time_s or 0.0 for one in made)
        again = Counter(_cause(one) for one in made if one.recompile_reason)
        parts = [f"{_times(len(made), 'compilation')} in {seconds:.1f} s"]
        parts += [f"again {_times(n)}: {why}" for why, n in again.most_common()]
        parts += [
            f"graph break {_times(n)} at {site}: {why}"
            for (why, site), n in self._log.graph_breaks().most_common()
        ]
        failed = {joined(one.fail_reason) for one in made if one.fail_reason}
        parts += [f"left to Python: {why[:LONGEST]}" for why in sorted(failed)]
        said = "compile: " + "; ".join(parts)
        if said != self._said:
            self._said = said
            logger.info("%s", said)


def _compilations() -> list[Any]:
    """torch's record of each of a forward pass, the last 64 at the most."""
    utils = sys.modules.get("torch._dynamo.utils")
    made = [] if utils is None else utils.get_compilation_metrics()
    return [one for one in made if one.co_name not in (None, NAME)]


def _cause(compilation: Any) -> str:
    reason = joined(compilation.recompile_reason).partition(": ")[2]
    where = f"{compilation.co_filename}:{compilation.co_firstlineno}"
    return f"{reason.partition(' # ')[0][:LONGEST]} ({where})"


def _times(count: int, what: str = "time") -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
