"""What `devrun check` notes on a device of torch's own or of a plug-in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from devrun.config.loader import DELETE
from devrun.probes.finding import Finding
from devrun.probes.probe import Probe, Probes, Training


class Kernels(Probe):
    """Operators that the device has no kernel for, each with the line that calls it."""

    def changes(self, cfg: Any) -> dict[str, Any]:
        section = cfg["device"]
        own = {"type": section} if isinstance(section, str) else dict(section)
        return {"device": {**own, "fallback": "cpu", DELETE: True}}

    def after(self, training: Training) -> Iterator[Finding]:
        missing = getattr(training.runner.adapter, "missing", {})
        remedy = "use another operator, or device: {fallback: cpu}"
        for name, line in missing.items():
            why = "the device has no kernel for it"
            yield Finding("breaks", "no kernel", name, why, remedy, line)


PROBES = Probes((Kernels,))
