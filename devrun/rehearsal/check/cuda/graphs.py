"""`Graphs`: what would keep a whole update out of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from devrun.devices.captured import obstacle
from devrun.devices.frozen import CaptureWatch
from devrun.rehearsal.check.cuda.options import asked_of
from devrun.rehearsal.check.findings import Finding
from devrun.rehearsal.check.notebook import Notebook
from devrun.rehearsal.check.probe import Probe, is_ours
from devrun.rehearsal.check.request import Request
from devrun.runners.training import Training

_WHY = "an update that needs Python cannot be one graph"
_REMEDY = "leave it out, or the option graphs of the device"


class Graphs(Probe):
    """Looks at the second update as a capture on the device would."""

    def __init__(self, request: Request, note: Notebook) -> None:
        super().__init__(request, note)
        self._asked: Any = None
        self._updates = 0
        self._watch: CaptureWatch | None = None

    def before(self, cfg: Any) -> None:
        asked = asked_of(cfg, self.request.device)
        fast = "fast" in (cfg.get("performance"), asked.get("performance"))
        self._asked = asked.get("graphs", "auto" if fast else None)

    def built(self, training: Training) -> None:
        self._updates, self._watch = 0, None
        if not self._asked:
            return
        adapter: Any = training.runner.adapter
        step: Callable[..., Any] = adapter.train_step

        def watched(*args: Any) -> Any:
            self._updates += 1
            if self._updates != 2:
                return step(*args)
            # torch's draws on this CPU are the device's there
            with CaptureWatch(training.runner.model) as self._watch:
                return step(*args)

        adapter.train_step = watched

    def after(self, training: Training) -> Iterator[Finding]:
        if self._watch is None:
            return
        severity = "breaks" if self._asked is True else "advice"
        for what, remedy, site in self._reasons(training):
            yield Finding(severity, "no graph", what, _WHY, remedy, site)

    def _reasons(self, training: Training) -> Iterator[tuple[str, str, str | None]]:
        """(what, remedy, `file:line`) of each."""
        runner = training.runner
        adapter: Any = runner.adapter
        for hook in runner.hooks:
            if not is_ours(hook) and "after_backward" in hook.get_triggered_stages():
                yield f"{type(hook).__name__} overrides after_backward", _REMEDY, None
        why = obstacle(adapter.update, runner.model, runner.optimizer)
        if why is not None:
            yield why, _REMEDY, None
        for finding in self._watch.findings if self._watch else ():
            yield f"the forward pass {finding.what}", finding.remedy, finding.site
