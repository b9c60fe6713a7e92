"""What would be slow on a Gaudi: work on the host, waits for it, graphs made again.

Counts come from the SDK's metrics. Lines come from the emulator, which sees the whole
run, or else from `OpWatch` in the first updates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from devrun.data.bucketing import BucketCollate
from devrun.devices.frozen import Finding
from devrun.devices.hpu.probes.compile_log import CompileLog
from devrun.devices.hpu.probes.remedies import remedy_for
from devrun.devices.hpu.probes.watch import (
    LAYERS,
    LOADER,
    NOWHERE,
    OpWatch,
    Site,
)
from devrun.devices.hpu.sdk import SDK
from devrun.errors import UnsupportedFeatureError
from devrun.hooks.base import Priority
from devrun.probes.probe import Watching
from devrun.probes.sites import calls_model, is_own
from devrun.probes.sources import assigned
from devrun.python38 import unprefixed
from devrun.run import Run

logger = logging.getLogger("devrun")

FALLBACK, SYNC = "on the host", "host waits"
RECOMPILATION, GRAPH_BREAK = "compiled again", "graph break"
WIDE, LONG, FROZEN = "float64", "int64", "frozen"
KINDS = {
    "cpu_fallback": FALLBACK,
    "host_sync": SYNC,
    "dynamic_op": SYNC,
    "float64": WIDE,
    "int64": LONG,
}
_FLOAT = "make it float32: dtype=torch.float32, or model.float()"
STEADY = 0.1
"""Share of the later updates that may compile without being worth a row."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    kind: str
    what: str
    site: Site
    times: int
    remedy: str


class Report:
    """Counts over one run; `rows` are the findings that can be acted on."""

    def __init__(
        self,
        sdk: SDK,
        mode: str,
        *,
        window: int,
        module: nn.Module | None = None,
        frozen: Callable[[], Sequence[Finding]] = tuple,
    ) -> None:
        self._sdk = sdk
        self._mode = mode
        self._window = window
        self._module = module
        self._frozen = frozen
        self.updates = 0
        self.shapes = 1
        """Shapes of batches that the data loader promises, by its buckets."""
        self._seen = OpWatch()
        self._watches = True
        self._compiled_in: list[int] = []
        self._start: dict[Any, int] = {}
        self.restart()

    def restart(self) -> None:
        """Count from here on."""
        self._log = CompileLog()
        self._start = {fact[:2]: fact[2] for fact in self._facts()}
        self._compilations = self._first = self._total("graph_compilation")
        self._fallbacks = dict(self._stats("cpu_fallback").get("FallbackOps", {}))
        self._launches = self._sdk.launches()

    def count_update(self) -> None:
        """One update is over."""
        self.updates += 1
        now = self._total("graph_compilation")
        if now > self._compilations:
            self._compiled_in.append(self.updates)
        self._compilations = now
        if self.updates >= self._window and self._watches:
            self._seen.begin(None)
            self._watches = False

    def watching(self, batch: Any) -> AbstractContextManager[object]:
        """Around an update on `batch`: operators are watched in the first ones."""
        if not self._watches:
            return nullcontext()
        self._seen.begin(batch)
        # torch compiles nothing, then or later, while something stands in its way
        return nullcontext() if self._mode == "compile" else self._seen

    @property
    def compilations(self) -> int:
        """Graphs compiled since the start."""
        return self._compilations - self._first

    @property
    def launches(self) -> int:
        """Launches an update; 0 where the SDK does not count them."""
        return (self._sdk.launches() - self._launches) // max(1, self.updates)

    def rows(self) -> list[Row]:
        """By kind, then the most frequent first."""
        found = self._counted() if self._sdk.counts_findings else self._watched()
        found = sorted(found, key=lambda row: (row.kind, -row.times))
        return [*self._froze(), *found, *self._weights(), *self._graphs()]

    def _froze(self) -> list[Row]:
        """What a graph took of the host's state: wrong numbers come first."""
        rows = []
        for finding in self._frozen():
            file, _, line = (finding.site or "the model:0").rpartition(":")
            remedy = remedy_for(FROZEN, "draws" if finding.random else "changes")
            rows.append(Row(FROZEN, finding.what, Site(file, int(line)), 1, remedy))
        return rows

    def _weights(self) -> list[Row]:
        """What the module itself holds in float64."""
        if self._module is None:
            return []
        held: dict[Site, list[str]] = {}
        for path, owner in self._module.named_modules():
            for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
                if tensor is not None and tensor.dtype is torch.float64:
                    found = assigned(type(owner), name)[0] or "the model:0"
                    file, _, line = found.rpartition(":")
                    whole = f"{path}.{name}" if path else name
                    held.setdefault(Site(file, int(line)), []).append(whole)
        rows = []
        for site, names in held.items():
            what = ", ".join(names[:3]) + (", ..." if names[3:] else "")
            rows.append(Row(WIDE, what, site, len(names), _FLOAT))
        return rows

    def _facts(self) -> Iterable[tuple[str, Any, int]]:
        """(kind, (what, site), times) as an SDK that counts them has counted."""
        for finding in self._sdk.findings():
            site = Site(finding.site.file, finding.site.line)
            yield finding.kind, (finding.what, site), finding.count

    def _since(self) -> Iterator[tuple[str, str, Site, int]]:
        """(kind, what, site, times) of what the SDK counted in this run."""
        for kind, (what, site), times in self._facts():
            times -= self._start.get((kind, (what, site)), 0)
            if times > 0:
                yield kind, what, site, times

    def _counted(self) -> list[Row]:
        rows: dict[Any, Row] = {}
        for kind, what, site, times in self._since():
            if kind not in KINDS:
                continue
            row = _row(KINDS[kind], what, site, times)
            if row is not None:
                rows.setdefault((row.kind, site, row.remedy), row)
        return list(rows.values())

    def _watched(self) -> list[Row]:
        rows = [
            _row(kind, what, site, times)
            for kind, seen in ((SYNC, self._seen.syncs), (WIDE, self._seen.wide))
            for (what, site), times in seen.items()
        ]
        for name, times in self._stats("cpu_fallback").get("FallbackOps", {}).items():
            times -= self._fallbacks.get(name, 0)
            if times > 0:
                site = self._seen.sites.get(name, NOWHERE)
                rows.append(_row(FALLBACK, name, site, times))
        return [row for row in rows if row is not None]

    def _graphs(self) -> list[Row]:
        """Why graphs are still compiled in the later half of the updates, if so."""
        rows = self._regions() if self._mode == "compile" else []
        half = self.updates // 2
        late = sum(update > half for update in self._compiled_in)
        # the first updates meet most shapes for the first time, also with buckets
        early = self.updates <= self._window
        usual = (self.updates - half) * (1 if early else STEADY)
        # a shape of the loader may come for the first time at any update
        if self._mode == "eager" or late < max(2, usual, self.shapes + 1):
            return rows
        if any(row.kind == RECOMPILATION for row in rows):
            return rows  # torch's own reason for the same
        what, site = self._change()
        remedy = remedy_for(RECOMPILATION, "batch" if site == LOADER else what)
        return [*rows, Row(RECOMPILATION, what, site, len(self._compiled_in), remedy)]

    def _change(self) -> tuple[str, Site]:
        """What changed first from update to update, as far as it was seen."""
        for (name, site), change in self._seen.varying.items():
            if site == LOADER or not is_own(site.file):
                where = LAYERS if calls_model(site.file) else site
                return f"{unprefixed(name, 'aten::')}: {change}", where
        for kind, what, site, _ in self._since():  # where operators are not watched
            if kind == "compilation" and what.startswith("shape"):
                unknown = is_own(site.file) or calls_model(site.file)
                return what, LAYERS if unknown else site
        return "a graph", Site("not in the first updates", 0)

    def _regions(self) -> list[Row]:
        """Where torch.compile broke off, and what it compiled again and again."""
        kinds = {
            GRAPH_BREAK: self._log.graph_breaks(),
            RECOMPILATION: self._log.recompilations(),
        }
        return [
            Row(kind, what, site, times, remedy_for(kind, what))
            for kind, found in kinds.items()
            for (what, site), times in found.most_common()
        ]

    def _stats(self, name: str) -> dict[str, Any]:
        metric = self._sdk.hpu.metrics.metric_global(name)
        return {} if metric is None else dict(metric.stats())

    def _total(self, name: str) -> int:
        return int(self._stats(name).get("TotalNumber", 0))

    def table(self, rows: list[Row]) -> str:
        """The rows as text, under one line of counts."""
        emulated = " (emulated: counts, never times)" if self._sdk.emulated else ""
        lines = [
            f"hpu report after {_number(self.updates, 'update')}{emulated}: "
            f"{_number(self.compilations, 'graph')} compiled, "
            f"{_number(len(rows), 'finding')}"
        ]
        if self.launches:
            lines[0] += f", {_number(self.launches, 'launch', 'es')} an update"
        for row in rows:
            lines.append(f"  {row.kind:<14} {row.times:>6} x  {row.what}")
            lines.append(f"  {'':<14} {'':>6}    at {row.site}: {row.remedy}")
        return "\n".join(lines)


def _row(kind: str, what: str, site: Site, times: int) -> Row | None:
    """None where devrun itself reads a value: at log points, in checks and saves."""
    if calls_model(site.file):
        site = LAYERS
    elif is_own(site.file):
        if kind == SYNC:
            return None
        if kind == WIDE and what != "copy to the device":
            return None  # the backward pass of a finding reported elsewhere
        site = LOADER if kind == WIDE else NOWHERE  # devrun moves the batches
    return Row(kind, what, site, times, remedy_for(kind, what))


def _number(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}{'' if count == 1 else plural}"


def _bucketed_shapes(loader: Any) -> int:
    """How many shapes its batches have by its buckets; 1 without."""
    collate, shapes = getattr(loader, "collate_fn", None), 1
    while collate is not None:  # wrappers keep what they wrap under the same name
        if isinstance(collate, BucketCollate):
            shapes *= max(1, len(getattr(collate.buckets, "sizes", ())))
        collate = getattr(collate, "collate_fn", None)
    return shapes


class ReportHook(Watching):
    """Says what a run does slowly on a Gaudi, after the first updates and at the end.

    `custom_hooks: [{type: devrun.devices.hpu.probes.report.ReportHook}]` asks for it.

    Args:
        after: updates until the first table, during which operators are watched.
        strict: end the run with an error where there is anything to report.

    Raises:
        UnsupportedFeatureError: the device is no Gaudi, or what `strict` says.
    """

    priority = Priority.LOWEST

    def __init__(self, after: int = 10, strict: bool = False) -> None:
        self.after = after
        self.strict = strict
        self.report: Report | None = None
        self._watched = ExitStack()

    def before_run(self, runner: Run) -> None:
        adapter: Any = runner.adapter
        if not hasattr(adapter, "frozen"):  # what no other device can say
            raise UnsupportedFeatureError(
                f"ReportHook reports on hpu, and this runs on {adapter.name}: "
                "devrun check names what would be slow on every device"
            )
        self.report = Report(
            adapter.sdk,
            str(adapter.options.mode),
            window=self.after,
            module=runner.model,
            frozen=adapter.frozen,
        )

    def before_train_iter(self, runner: Run) -> None:
        report = self._begun()
        if not report.updates:
            reader = getattr(runner.data_loader, "loader", None)
            report.shapes = _bucketed_shapes(reader)
        self._watched.enter_context(report.watching(runner.data_batch))

    def after_train_iter(self, runner: Run) -> None:
        self._watched.close()
        report = self._begun()
        report.count_update()
        if report.updates == self.after:
            self._log_table(report)

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self._watched.close()

    def after_run(self, runner: Run) -> None:
        self._log_table(self._begun())

    def _begun(self) -> Report:
        if self.report is None:
            raise RuntimeError("the report begins in before_run")
        return self.report

    def _log_table(self, report: Report) -> None:
        rows = report.rows()
        logger.log(logging.WARNING if rows else logging.INFO, report.table(rows))
        if rows and self.strict:
            first = rows[0]
            which = ", the first" if rows[1:] else ""
            raise UnsupportedFeatureError(
                f"ReportHook: {_number(len(rows), 'finding')} (in full in the log)"
                f"{which}: {first.kind}, {first.what} at {first.site}: {first.remedy}",
            )
