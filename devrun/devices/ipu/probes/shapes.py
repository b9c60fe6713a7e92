"""Batches of more than one shape, which a compiled graph does not take."""

from __future__ import annotations

from typing import Any

from devrun.devices.ipu.batch import ShapesError
from devrun.probes.finding import Finding
from devrun.probes.keys import line_of, pasted
from devrun.probes.probe import Probe, Training
from devrun.probes.sites import maker_of


class Shapes(Probe):
    """Gets past them by the line of config that makes all of one shape."""

    _data: Any = None

    def built(self, training: Training) -> None:
        self._data = training.loaders[0]

    def work_around(self, error: Exception, cfg: Any) -> dict[str, Any] | None:
        if not isinstance(error, ShapesError):
            return None
        fix, reason = error.fix, error.reason
        self.note.found(
            Finding(
                severity="breaks",
                kind="changing shapes",
                what="a batch",
                why=reason,
                remedy=pasted(fix) if fix else "resize or pad the samples to one size",
                site=maker_of(self._data) or line_of(cfg, "data.buckets", "data.train"),
                fix=fix,
            )
        )
        return fix
