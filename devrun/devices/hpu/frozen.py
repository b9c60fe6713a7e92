"""Draws of random numbers that torch's compiler makes once and keeps.

Most of them it leaves to Python or draws again; of generators that a program made
itself, such as a `random.Random`, it keeps the first number without a word.
"""

from __future__ import annotations

import dataclasses
import dis
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from devrun.devices.frozen import CaptureWatch, Finding

logger = logging.getLogger("devrun")


class CompiledDraws:
    """Enter `watching` around each update; `findings` are known after the third."""

    UPDATES = 3
    """The first compiles; a second may again, for another shape."""

    def __init__(self, module: nn.Module) -> None:
        self.findings: list[Finding] = []
        self._module = module
        self._updates = 0
        self._first: list[Finding] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around one update."""
        if self._updates == self.UPDATES:
            yield
            return
        with CaptureWatch(self._module, lines=False) as watch:
            yield
        self._updates += 1
        drawn = [finding for finding in watch.findings if finding.random]
        if self._updates == 1:
            self._first = drawn
        elif self._updates == self.UPDATES:
            for finding in self._first:
                if finding not in drawn:
                    self._report(finding)

    def _report(self, finding: Finding) -> None:
        site = _line_of(finding.what.rpartition(".")[2], self._module)
        self.findings.append(dataclasses.replace(finding, site=site))
        logger.warning("%s", self.findings[-1].message("hpu compile"))


def _line_of(name: str, root: nn.Module) -> str | None:
    """The first line of the modules' code that calls a method of what `name` names.

    What the compiler traces is under no line: it is no call of Python's.
    """
    for module in root.modules():
        for method in vars(type(module)).values():
            code = getattr(method, "__code__", None)
            if code is None:
                continue
            lines, line = dict(dis.findlinestarts(code)), 0
            for step, after in itertools.pairwise(dis.get_instructions(code)):
                line = lines.get(step.offset) or line
                if step.argval == name and after.opname in ("LOAD_METHOD", "LOAD_ATTR"):
                    return f"{code.co_filename}:{line}"
    return None
