"""`HardWired`: code that asks for CUDA by name, noted, and done on the right device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from devrun.devices.substitutes import CUDA, Substitutes
from devrun.rehearsal.check import sites
from devrun.rehearsal.check.findings import Finding
from devrun.rehearsal.check.probe import Probe

_TORCH_NAMES = {"hpu": "hpu"}
"""Device -> its name in torch, where a rehearsal's tensors are not on the CPU."""


class HardWired(Probe):
    """Notes what the user's code asks of CUDA by name, and gets past it."""

    @contextmanager
    def throughout(self) -> Iterator[None]:
        if self.request.device == CUDA and not self.request.seen_from_cpu:
            yield
            return
        device = _TORCH_NAMES.get(self.request.device, "cpu")
        with Substitutes(device, self._found):
            yield

    def _found(self, what: str, remedy: str) -> None:
        site = sites.here(2)
        if site is None:
            return
        works = self.request.device == CUDA
        self.note.found(
            Finding(
                severity="advice" if works else "breaks",
                kind="hard-wired cuda",
                what=what,
                why="it works on CUDA only"
                if works
                else f"it raises on {self.request.device}, where there is no CUDA",
                remedy=remedy,
                site=site,
            )
        )
