"""What `devrun check --device cores` looks at besides what it does on every device."""

from __future__ import annotations

import os
from typing import Any

from devrun.probes.finding import Finding
from devrun.probes.keys import line_of
from devrun.probes.probe import Probe, Probes


class SharedCores(Probe):
    """Notes loader workers that take cores from the training."""

    def before(self, cfg: Any) -> None:
        have = os.cpu_count() or 1
        workers = (cfg.get("data") or {}).get("workers_per_gpu") or 0
        self.note.fact("cores", have)
        if workers < have:
            return
        self.note.found(
            Finding(
                severity="slow",
                kind="shared cores",
                what=f"workers_per_gpu: {workers}",
                why=f"the workers take turns with the training on {have} cores",
                remedy=f"data.workers_per_gpu: {have - 1}",
                site=line_of(cfg, "data.workers_per_gpu"),
                fix={"data.workers_per_gpu": have - 1},
            )
        )


PROBES = Probes((SharedCores,))
