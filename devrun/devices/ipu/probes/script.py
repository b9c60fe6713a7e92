"""What PopTorch would refuse of a program of the user's own."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from devrun.devices.ipu.probes.refused import finding_of
from devrun.devices.ipu.sdk import load
from devrun.probes.finding import Finding
from devrun.probes.hard_wired import Substitutes, telling
from devrun.probes.notebook import Notebook
from devrun.probes.probe import ProgramProbe

_UNUSED = (
    "poptorch",
    "the program compiled nothing for an IPU: nothing of it was looked at",
    "wrap the model in poptorch.trainingModel or inferenceModel, or give the config of "
    "a training to devrun check",
)


class IPUProgram(ProgramProbe):
    """Has the emulator go on where it refuses, to the end of the process.

    Args:
        memory: bytes of an IPU, above which a graph is refused; None sets no limit.
    """

    def __init__(self, note: Notebook, script: str, memory: int | None) -> None:
        self._note = note
        self._emulation = load(True).emulation
        self._emulation.set_memory_limit(memory)
        self._refusals = self._emulation.refusals()
        self._found = self._refusals.__enter__()

    def getting_past(self) -> AbstractContextManager[Any]:
        """Within, what names CUDA is done on the host."""
        return Substitutes("cpu", telling(self._note, "ipu"), available=False)

    def found(self) -> None:
        """Note what was refused so far."""
        counts = self._emulation.counts
        self._note.fact("compilations", counts["compile"])
        self._note.fact("calls", counts["run"])
        if not (counts["compile"] or self._found):
            self._note.found(Finding("advice", "not used", *_UNUSED))
        for refusal in list(self._found):
            self._note.found(finding_of(refusal))
