"""What PopTorch would not compile: all of it, and batches of more than one shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from devrun.devices.ipu.batch import ShapesError
from devrun.devices.ipu.probes.options import key_of
from devrun.devices.ipu.probes.refused import KIND, finding_of, told
from devrun.devices.ipu.sdk import load
from devrun.probes.finding import Finding
from devrun.probes.hosted import known_births
from devrun.probes.keys import line_of, pasted
from devrun.probes.probe import Probe, Training
from devrun.probes.sites import maker_of, user_line
from devrun.probes.workarounds import refusal

_SIZED = ("__getitem__", "masked_select", "nonzero")
"""Operations whose results, as they are got past, have the size of another batch."""


class Compiling(Probe):
    """Has the emulator go on where it refuses, to the end of the process.

    The graph of a resumed run is refused for the same, and must be got past too.
    """

    _refusals: AbstractContextManager[list[Any]] | None = None
    _found: list[Any] | None = None

    def before(self, cfg: Any) -> None:
        self._cfg = cfg
        births = partial(known_births, "ipu", self.note)
        self._refusals = load(True).emulation.refusals(births)
        self._found = self._refusals.__enter__()

    def built(self, training: Training) -> None:
        self._data = training.loaders[0]

    def follows(self, error: Exception) -> bool:
        """What a graph computes without what was refused is worth nothing; nor is what
        a branch that was refused has kept out."""
        found = self._found or ()
        masked = any(one.operation in _SIZED for one in found)
        if masked and re.search("must match|shape mismatch", str(error)):
            return True
        if IndexError in (type(error), type(error.__cause__)):
            return any(one.operation == "__bool__" for one in found)
        own = isinstance(error, ShapesError) or refusal(error).site
        return bool(found) and not own

    def after(self, training: Training) -> Iterator[Finding]:
        found = told(self._found or ())
        trained = {user_line(one.stack) for one in found if one.training}
        for one in sorted(found, key=lambda one: not one.training):
            if one.training:
                row = finding_of(one)
                yield replace(row, site=row.site or self._section())
            elif user_line(one.stack) not in trained:
                yield finding_of(one, fix=self._on_the_host())

    def work_around(self, error: Exception, cfg: Any) -> dict[str, Any] | None:
        """Batches are made of one shape; what evaluates on an IPU is left to the host
        where it cannot be compiled."""
        why = str(getattr(error, "reason", error))
        if isinstance(error, ShapesError):
            fix, what = error.fix, ("changing shapes", "a batch")
            remedy = pasted(fix) if fix else "resize or pad the samples to one size"
            site = maker_of(self._data) or line_of(cfg, "data.buckets", "data.train")
        elif getattr(error, "key", None) == "evaluate_on":
            fix, what = self._on_the_host(), (KIND, "evaluation")
            remedy, site = "ipu.evaluate_on: host", None
        else:
            return None
        self.note.found(Finding("breaks", *what, why, remedy, site, fix=fix))
        return fix

    def _section(self) -> str | None:
        """Where the config says what of the device no operation is to blame for."""
        update = key_of(self._cfg, "Training.gradientAccumulation")
        return line_of(self._cfg, update, "optimizer_config", "ipu", "device", "model")

    def _on_the_host(self) -> dict[str, Any]:
        return {key_of(self._cfg, "evaluate_on"): "host"}
