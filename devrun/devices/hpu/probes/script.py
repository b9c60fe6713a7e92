"""What a Gaudi would do slowly of a program of the user's own."""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from torch.optim import optimizer as optimizers

from devrun.devices.emulation import use_emulators
from devrun.devices.hpu.probes.remedies import MARK, UNUSED, WHY, remedy_for
from devrun.devices.hpu.probes.report import KINDS, RECOMPILATION, SYNC, WIDE
from devrun.devices.hpu.sdk import emulator
from devrun.probes.dense import dense_buffers
from devrun.probes.finding import Finding
from devrun.probes.hard_wired import Substitutes, telling
from devrun.probes.hosted import Hosted, placed
from devrun.probes.kinds import devices_of
from devrun.probes.notebook import Notebook
from devrun.probes.probe import ProgramProbe
from devrun.probes.sites import here

_OFTEN = 0.5
"""Times an update from which a wait of the host is in the loop."""
_SETTLED = 4
"""Graphs compiled at one line that a loop with fixed shapes does not exceed."""
_UNMARKED = 3
_DEVICE = "hpu"
_INSTEAD = {
    "cuda": 'x.to("hpu")',
    "autocast": 'torch.autocast("hpu", dtype=torch.bfloat16)',
    "GradScaler": "leave it out: bf16 needs no loss scaling",
    "device": 'device="hpu"',
}
"""What stands for CUDA in a program of one's own."""
_IMPORT = (
    "habana_frameworks",
    "torch knows no device hpu before it is imported",
    "import habana_frameworks.torch.core as htcore",
)
_NO_MARK = "maximal graph size"
"""The cause of a flush that the user did not bring about."""


class HPUProgram(ProgramProbe):
    """Counts the updates of any optimizer, and what waits in the lazy graph at each.

    Args:
        script: the program's file.
        memory: bytes of the device; None for those of the emulator.
    """

    def __init__(self, note: Notebook, script: str, memory: int | None) -> None:
        self._note, self._script, self._memory = note, script, memory
        self._updates = self._flushes = self._unmarked = 0
        self._longest = 0
        self._counts: dict[Any, int] = {}
        self._seen: Counter[Any] = Counter()
        """In how many updates each finding of the emulator's was counted."""
        self._site: str | None = None
        use_emulators()
        self._handle = optimizers.register_optimizer_step_post_hook(self._stepped)

    @contextmanager
    def getting_past(self) -> Iterator[None]:
        """Within, what breaks is repaired: tensors elsewhere, and what names CUDA."""
        # a program that never saw a Gaudi is led along its path for CUDA
        ported = _DEVICE in devices_of(self._script)
        import_module("habana_frameworks.torch.core")
        tell = telling(self._note, "hpu", _INSTEAD)
        hosted, dense = Hosted("hpu", self._note), dense_buffers(self._note, "hpu")
        with Substitutes("hpu", tell, not ported), placed(hosted), dense:
            yield
        if not ported:
            self._note.found(self._not_imported())

    def _not_imported(self) -> Finding:
        lines = enumerate(
            Path(self._script).read_text("utf-8", "replace").split("\n"), 1
        )
        first = (
            n for n, text in lines if text.startswith(("import torch", "from torch"))
        )
        site = f"{self._script}:{next(first, 1)}"
        return Finding("breaks", "not imported", *_IMPORT, site)

    def found(self) -> None:
        """Note what the emulator counted so far."""
        sdk = emulator()
        if sdk is None:
            self._note.found(Finding("advice", "not used", *UNUSED))
            return
        report = sdk.report()
        updates = max(self._updates, 1)
        self._note.fact("updates", self._updates)
        self._note.fact("graphs compiled", report.compiled_graphs)
        launches = report.totals.get("launch", 0)
        self._note.fact("launches an update", round(launches / updates, 1))
        if report.mode == "lazy" and self._longest >= _UNMARKED:
            self._note.found(self._no_mark())
        self._count(report.findings)
        for one in _by_line(report.findings):
            kind = KINDS[one.kind]
            often = one.count / updates
            times = self._seen[one.kind, one.what, one.site]
            if kind == WIDE and "backward" in linecache.getline(
                one.site.file, one.site.line
            ):
                continue  # of what the forward pass makes, where it is said
            if kind == SYNC and (times / updates < _OFTEN or times < 2):
                continue  # once in a while, as at log points
            self._note.found(
                Finding(
                    severity="slow",
                    kind=kind,
                    what=one.what,
                    why=WHY[kind],
                    remedy=remedy_for(kind, one.what),
                    site=str(one.site) if one.site.line else None,
                    per_step=round(often, 2),
                )
            )
        self._compilations(report.findings)

    def _compilations(self, findings: Any) -> None:
        """Lines where graphs are compiled again and again."""
        updates, times = self._updates, defaultdict(list)
        for one in findings:
            if one.kind == "compilation":
                times[one.site].append(one)
        for site, found in times.items():
            count = sum(one.count for one in found)
            if count <= _SETTLED:
                continue
            shapes = [one for one in found if one.what.startswith("shape")]
            what = max(shapes or found, key=lambda one: one.count).what
            self._note.found(
                Finding(
                    severity="slow",
                    kind=RECOMPILATION,
                    what=what,
                    why=f"{count} graphs were compiled there in {updates} updates",
                    remedy=remedy_for(RECOMPILATION, "batch" if shapes else what),
                    site=str(site) if site.line else None,
                )
            )

    def _count(self, findings: Any) -> None:
        for one in findings:
            key = one.kind, one.what, one.site
            self._seen[key] += one.count > self._counts.get(key, 0)
            self._counts[key] = one.count

    def _stepped(self, *_: Any) -> None:
        self._updates += 1
        sdk = emulator()
        if sdk is None:
            return
        report = sdk.report()
        self._count(report.findings)
        totals = report.totals
        flushes = totals.get("flush", 0) - totals.get(f"flush by {_NO_MARK}", 0)
        self._unmarked = 0 if flushes > self._flushes else self._unmarked + 1
        self._flushes = flushes
        if self._unmarked > self._longest:
            self._longest, self._site = self._unmarked, here(2)

    def _no_mark(self) -> Finding:
        return Finding(
            severity="slow",
            kind="no step mark",
            what="mark_step",
            why=f"the lazy graph went on growing over {self._longest} updates: nothing "
            "runs and no memory is freed until it is cut",
            remedy=MARK,
            site=self._site,
        )


def _by_line(findings: Any) -> Any:
    """Those of known kinds, the first of each line and kind."""
    seen = set()
    for one in findings:
        kind = KINDS.get(one.kind)
        key = (kind, one.site) if one.site.line else (kind, one.what)
        if kind is not None and key not in seen:
            seen.add(key)
            yield one
