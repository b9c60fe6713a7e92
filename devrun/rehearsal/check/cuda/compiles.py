"""`Compiles`: where `torch.compile` would break the graph, or compile again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from devrun.rehearsal.check import sites
from devrun.rehearsal.check.cuda.called import Called
from devrun.rehearsal.check.cuda.options import asked_of
from devrun.rehearsal.check.findings import Finding
from devrun.runners.training import Training
from devrun.text import joined

_FACT = "torch.compile"
_ONCE_MORE = 1
"""Compilations beside the first that are none too many: one for all lengths."""


@dataclass
class Tried:
    """What the compiler did with the calls."""

    breaks: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Reason, remedy and line of each."""
    again: list[str] = field(default_factory=list)
    """Why a frame was compiled again, each time."""


class Compiles(Called):
    """Compiles the model as the first updates called it, without making code."""

    most = 6
    _setting: Any = None

    def before(self, cfg: Any) -> None:
        self._setting = asked_of(cfg, self.request.device).get("compile")

    def tried(self, training: Training) -> Iterator[Finding]:
        given = self._setting if isinstance(self._setting, dict) else {}
        model, calls = training.runner.model, list(self.calls.values())
        work = partial(compiled, model, calls, given.get("dynamic"))
        try:
            found: Tried = self.aside(training, work)
        except RuntimeError as error:
            self.note.fact(_FACT, {"not tried": str(error)})
            if not self._setting:
                return  # nobody asked
            raise
        counts = {"graph breaks": len(found.breaks), "compiled again": len(found.again)}
        self.note.fact(_FACT, counts)
        severity = "slow" if self._setting else "advice"
        for reason, remedy, site in found.breaks:
            # of a library's code, only who compiles it wants to know
            if self._setting or (site and not sites.is_library(site)):
                yield Finding(
                    severity=severity,
                    kind="graph break",
                    what=reason,
                    why="torch.compile ends its graph here, and begins another",
                    remedy=remedy,
                    site=site,
                )
        if self._setting and len(found.again) > _ONCE_MORE:
            yield Finding(
                severity=severity,
                kind="compiled again",
                what=type(model).__name__,
                why=f"{len(found.again)} times in {len(calls)} shapes of batch: "
                f"{'; '.join(dict.fromkeys(found.again))}",
                remedy="pad to a few lengths (bucket_sampler), or "
                "device: {type: cuda, compile: {dynamic: true}}",
            )


def compiled(model: nn.Module, calls: list[tuple[Any, Any]], dynamic: Any) -> Tried:
    """Compile `model` for each call, in a process of which nothing else is wanted."""
    import torch._dynamo as dynamo

    found = Tried()
    dynamo.reset()
    args, kwargs = calls[0]
    for each in dynamo.explain(model)(*args, **kwargs).break_reasons:
        if not each.graph_break:
            continue
        stack = [(frame.filename, frame.lineno) for frame in each.user_stack]
        reason, remedy = _words(each.reason)
        row = reason, remedy, sites.user_line(reversed(stack))
        if row not in found.breaks:
            found.breaks.append(row)
    dynamo.reset()
    dynamo.utils.clear_compilation_metrics()
    quick: Any = torch.compile(model, backend="eager", dynamic=dynamic)
    for args, kwargs in calls:
        quick(*args, **kwargs)
    for metrics in dynamo.utils.get_compilation_metrics():
        if metrics.recompile_reason:
            reason = joined(metrics.recompile_reason).partition(": ")[2]
            found.again.append(reason.partition("  # ")[0].partition(" # ")[0])
    return found


def _words(reason: str) -> tuple[str, str]:
    """Dynamo's reason in one clause, and its first hint."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    hints = [line.removeprefix("Hint: ") for line in lines if line.startswith("Hint:")]
    what = lines[0] if lines else "unknown"
    if what.startswith("generic_jump"):
        return "a branch on a value", "torch.where(condition, a, b), or torch.cond"
    explained = [one for one in lines if one.startswith("Explanation:")]
    if what.startswith("Failed to trace builtin") and explained:
        what = explained[0].partition("builtin operator ")[2] or what
    return what, hints[0] if hints else "move it out of forward"
