"""What a rehearsal on a Gaudi finds: the adapter's report, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from devrun.devices.hpu.probes.report import (
    FALLBACK,
    FROZEN,
    GRAPH_BREAK,
    LONG,
    RECOMPILATION,
    SYNC,
    WIDE,
    Report,
    ReportHook,
)
from devrun.devices.hpu.probes.watch import LOADER
from devrun.devices.hpu.sdk import SDK
from devrun.probes.finding import Finding
from devrun.probes.hosted import Hosted, placed
from devrun.probes.probe import Probe, Training
from devrun.probes.sites import is_library, maker_of
from devrun.run import Run
from devrun.tensors import nbytes, tensors_in

_MEANS = {
    FALLBACK: ("slow", "a Gaudi has no kernel for it: its inputs go to the host"),
    SYNC: ("slow", "the host waits for the device, which has nothing to do meanwhile"),
    RECOMPILATION: ("slow", "a graph is compiled again for each new shape or number"),
    GRAPH_BREAK: ("slow", "torch.compile leaves the graph here and goes on in Python"),
    WIDE: ("differs", "a Gaudi has no float64: the numbers are those of float32"),
    LONG: (
        "differs",
        "a Gaudi keeps 32 bits of whole numbers: larger ones wrap around",
    ),
    FROZEN: ("differs", "Python code in a graph runs once, while it is captured"),
}
_OUTSIDE_GRAPHS = ("lazy", "eager")
"""Modes in which each operator of the user's passes through torch's dispatcher."""


class HPUProbe(Probe):
    """Reads the adapter's report when the updates are over."""

    def changes(self, cfg: Any) -> dict[str, Any]:
        section = dict(cfg["device"])
        if self.request.memory is not None and self.request.emulated:
            limit = {"DEVRUN_HPU_MEMORY_MB": max(self.request.memory >> 20, 1)}
            section["env"] = {**(section.get("env") or {}), **limit}
        return {"device": {**section, "_delete_": True}}

    def built(self, training: Training) -> None:
        self._evaluated: Counter[Any] = Counter()
        self._weighed = False
        training.runner.register_hook(self)
        self._hook = ReportHook(after=2 * self.request.steps)
        training.runner.register_hook(self._hook)
        training.runner.eval_contexts.append(self._evaluating)

    def before_train_iter(self, runner: Run) -> None:
        """Note the bytes of a batch by the dtypes that a Gaudi stores otherwise."""
        if self._weighed:
            return
        self._weighed = True
        tensors = list(tensors_in(runner.data_batch))
        for dtype in (torch.int64, torch.float64):
            size = sum(nbytes(t) for t in tensors if t.dtype is dtype)
            self.note.fact(f"{str(dtype)[6:]} bytes a batch", size)

    @contextmanager
    def _evaluating(self, runner: Any) -> Iterator[None]:
        """Within an evaluation, what the SDK counts is no part of an update."""
        before = _counts(runner.adapter.sdk)
        yield
        self._evaluated += _counts(runner.adapter.sdk) - before

    def getting_past(self) -> AbstractContextManager[Any]:
        outside = self.request.mode in _OUTSIDE_GRAPHS
        return placed(Hosted("hpu", self.note) if outside else nullcontext())

    def after(self, training: Training) -> Iterator[Finding]:
        runner = training.runner
        report = self._hook.report
        if report is None or not report.updates:
            return
        maker = maker_of(training.loaders[0])
        yield from _findings(report, self._evaluated, maker)
        self.note.fact("graphs compiled", report.compilations)
        self.note.fact("launches an update", report.launches)
        stats = runner.adapter.stats()
        self.note.fact("peak MiB", round(stats.get("peak_mib", 0.0), 1))


def _counts(sdk: SDK) -> Counter[Any]:
    return Counter(
        {(f.what, f.site.file, f.site.line): f.count for f in sdk.findings()}
    )


def _findings(
    report: Report, evaluated: Mapping[Any, int], maker: str | None
) -> Iterator[Finding]:
    """The report's rows; `evaluated` has how often each was in an evaluation.

    Args:
        maker: the line that makes the samples.
    """
    for row in report.rows():
        if (row.kind, row.site) == (RECOMPILATION, LOADER):
            continue  # BatchShapes looks at more batches
        severity, why = _MEANS[row.kind]
        if not row.site.line:
            why = f"in {row.site}: {why}"
        elif is_library(row.site.file) and severity == "slow":
            severity = "advice"  # it is not the user's to change
        times = row.times - evaluated.get((row.what, *row.site), 0)
        often = row.kind != FROZEN and times > 0
        yield Finding(
            severity=severity,
            kind=row.kind,
            what=row.what,
            why=why,
            remedy=row.remedy,
            site=maker
            if row.site == LOADER
            else str(row.site)
            if row.site.line
            else None,
            per_step=round(times / report.updates, 2) if often else None,
        )
