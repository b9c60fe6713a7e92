"""`Compiles`: where `torch.compile` would break the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import nn

from devrun.devices.cuda.probes.options import asked_of
from devrun.probes import sites
from devrun.probes.aside import aside
from devrun.probes.finding import Finding
from devrun.probes.probe import Probe, Training
from devrun.python38 import unprefixed

_FACT = "torch.compile"


class Compiles(Probe):
    """Has Dynamo explain the first call of the model, where the config compiles it."""

    _asked: Any = None
    _call: tuple[Any, Any] | None = None

    def before(self, cfg: Any) -> None:
        self._asked = asked_of(cfg, self.request.device).get("compile")

    def built(self, training: Training) -> None:
        self._call = None
        if not self._asked:
            return

        def called(model: nn.Module, args: Any, kwargs: Any) -> None:
            if self._call is None:
                self._call = args, kwargs

        model = training.runner.model
        self._handle = model.register_forward_pre_hook(called, with_kwargs=True)

    def after(self, training: Training) -> Iterable[Finding]:
        if not self._asked:
            return ()
        self._handle.remove()
        return self._breaks(training) if self._call else ()

    def _breaks(self, training: Training) -> Iterator[Finding]:
        adapter: Any = training.runner.adapter
        work = partial(explained, training.runner.model, self._call, adapter)
        breaks = aside(work)
        self.note.fact(_FACT, {"graph breaks": len(breaks)})
        for reason, remedy, site in breaks:
            yield Finding(
                severity="slow",
                kind="graph break",
                what=reason,
                why="torch.compile ends its graph here, and begins another",
                remedy=remedy,
                site=site,
            )


def explained(
    model: nn.Module, call: Any, adapter: Any
) -> list[tuple[str, str, str | None]]:
    """(reason, remedy, `file:line`) of each break, in a process of its own."""
    import torch._dynamo as dynamo

    dynamo.reset()
    args, kwargs = call
    found: dict[tuple[str, str, str | None], None] = {}
    with adapter.update.autocast or nullcontext():
        for each in dynamo.explain(model)(*args, **kwargs).break_reasons:
            if each.graph_break:
                stack = [(frame.filename, frame.lineno) for frame in each.user_stack]
                reason, remedy = _words(each.reason)
                found[reason, remedy, sites.user_line(reversed(stack))] = None
    return list(found)


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
    return what, hints[0] if hints else "move it out of forward"
