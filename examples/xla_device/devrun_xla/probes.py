"""What `devrun check --device xla` counts: graphs, transfers, operators of the host."""

from __future__ import annotations

from collections.abc import Iterator

from torch_xla.debug import metrics

from devrun.probes.finding import Finding
from devrun.probes.probe import Probe, Probes, Training

_READ = "aten::_local_scalar_dense"
"""A value that the host reads: a transfer, which is counted as one."""


class Counters(Probe):
    """Reads PyTorch/XLA's own counters when the updates are over."""

    def after(self, training: Training) -> Iterator[Finding]:
        stats = training.runner.adapter.stats()
        for name in ("graphs", "transfers"):
            self.note.fact(name, stats.get(name, 0))
        for name in metrics.counter_names():
            if name.startswith("aten::") and name != _READ:
                what = f"{name}, {metrics.counter_value(name)} times"
                why = "XLA has no kernel: the graph ends there, and the host does it"
                remedy = "use another operator"
                yield Finding("slow", "on the host", what, why, remedy)


PROBES = Probes((Counters,))
