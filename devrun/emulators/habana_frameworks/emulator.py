"""Steering the emulation and reading all that it counted.

Not part of Gaudi's interface: training code does not need this module.
"""

from __future__ import annotations

from dataclasses import dataclass

from habana_frameworks._emulation.lazy import GRAPH
from habana_frameworks._emulation.memory import COUNTERS
from habana_frameworks._emulation.plans import counted
from habana_frameworks._emulation.recorder import RECORDER, Finding
from habana_frameworks._emulation.settings import SETTINGS

__all__ = ["Finding", "Report", "report", "reset", "set_memory_limit"]


@dataclass(frozen=True)
class Report:
    """What happened since the start or the last `reset`.

    `findings` are by user line, the most frequent first; `totals` has every counter;
    `ops` says how often each operator ran.
    """

    mode: str
    findings: tuple[Finding, ...]
    totals: dict[str, int]
    ops: dict[str, int]
    compiled_graphs: int
    peak_bytes: int

    def of(self, kind: str) -> list[Finding]:
        """The findings of one kind, e.g. 'host_sync'."""
        return [f for f in self.findings if f.kind == kind]


def report() -> Report:
    """What was counted; the open lazy graph is not in it yet."""
    findings = sorted(RECORDER.findings.values(), key=lambda f: -f.count)
    ops = {p.full_name: p.launches for p in counted() if p.launches}
    return Report(
        mode="lazy" if SETTINGS.lazy else "eager",
        findings=tuple(findings),
        totals=dict(RECORDER.totals),
        ops=ops,
        compiled_graphs=len(GRAPH.compiled),
        peak_bytes=COUNTERS.peak,
    )


def reset() -> None:
    """Count from zero; graphs that were compiled stay in the cache."""
    RECORDER.reset()
    for plan in counted():
        plan.launches = 0


def set_memory_limit(nbytes: int) -> None:
    """Give the device this much memory, to rehearse running out of it."""
    if nbytes <= 0:
        raise ValueError(f"a memory limit is a number of bytes above 0, not {nbytes}")
    COUNTERS.set_limit(nbytes)
