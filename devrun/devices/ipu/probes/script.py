"""What PopTorch would refuse of a program of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from devrun.devices.capture import CaptureWatch
from devrun.devices.ipu.probes.refused import finding_of, frozen, told
from devrun.devices.ipu.sdk import load
from devrun.probes.finding import Finding
from devrun.probes.hard_wired import Substitutes, telling
from devrun.probes.hosted import known_births
from devrun.probes.notebook import Notebook
from devrun.probes.probe import ProgramProbe
from devrun.probes.sites import here

_OTHER = "poptorch.optim.SGD, AdamW, RMSprop or LAMB"
_CLIPPED = (
    "no gradient is on the host: an IPU makes and uses them in the graph",
    "max_grad_norm of poptorch.optim.SGD, Adam or AdamW",
)
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
        self._note, self._script = note, script
        self._poptorch = load(True)
        self._emulation = self._poptorch.emulation
        self._emulation.set_memory_limit(memory)
        self._refusals = self._emulation.refusals(self._watched, self._looked)
        self._found = self._refusals.__enter__()
        self._graphs: dict[Any, CaptureWatch] = {}

    @contextmanager
    def _watched(self, model: Any) -> Iterator[None]:
        with known_births("ipu", self._note, model), CaptureWatch(model) as seen:
            yield
        for one in seen.findings:
            self._note.found(frozen(one))

    def _looked(self, model: Any, graph: Any) -> None:
        """Before a run, at attributes that were changed since the graph was made."""
        if graph not in self._graphs:
            with CaptureWatch(model) as self._graphs[graph]:
                pass
        elif not (watch := self._graphs[graph]).findings:
            watch.look_again(sys.modules["__main__"])
            for one in watch.findings:
                self._note.found(frozen(one))

    @contextmanager
    def getting_past(self) -> Iterator[None]:
        """Within, what names CUDA is done on the host, and any optimizer trains."""
        plain = self._poptorch.trainingModel

        def wrapped(model: Any, options: Any = None, optimizer: Any = None) -> Any:
            try:
                return plain(model, options, optimizer)
            except (AssertionError, ValueError) as error:  # of an optimizer
                row = ("breaks", "raises", type(error).__name__, str(error), _OTHER)
                self._note.found(Finding(*row, here(2)))
                return plain(model, options)

        clip = nn.utils.clip_grad_norm_

        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            own = [parameters] if isinstance(parameters, Tensor) else [*parameters]
            if self._graphs and all(one.grad is None for one in own):
                row = ("differs", "gradients", "clipped", *_CLIPPED, here(2))
                self._note.found(Finding(*row))
            return clip(own, *args, **kwargs)

        cuda = Substitutes("cpu", telling(self._note, "ipu"), available=False)
        trains = patch.object(self._poptorch, "trainingModel", wrapped)
        with cuda, trains, patch.object(nn.utils, "clip_grad_norm_", clipped):
            yield

    def found(self) -> None:
        """Note what was refused so far."""
        counts = self._emulation.counts
        self._note.fact("compilations", counts["compile"])
        self._note.fact("calls", counts["run"])
        if not (counts["compile"] or self._found):
            unused = Finding("advice", "not used", *_UNUSED, f"{self._script}:1")
            self._note.found(unused)
        for refusal in told(self._found):
            self._note.found(finding_of(refusal))
