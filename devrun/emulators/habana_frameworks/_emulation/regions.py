"""What a compiled region launches: one recipe for each part of it.

A region runs operator by operator here, forward and backward. A part begins with the
first operator that a Gaudi would launch, and ends with the region or before an operator
that runs on the host. Each part is compiled once for each set of shapes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from habana_frameworks._emulation.lazy import GRAPH
from habana_frameworks._emulation.recorder import RECORDER
from habana_frameworks._emulation.sites import user_site
from habana_frameworks._emulation.torch_private import (
    backward_task,
    current_node,
    current_sequence,
    sequence_of,
)

NO_TASK = -1

LAUNCHERS: list[Any] = []
"""Who counts launches in place of the operators, the innermost last; none at first."""


class Nobody:
    """Inside a fused kernel, which was counted as a whole."""

    def launch(self) -> None:
        """Nothing to count."""

    def split(self) -> None:
        """Nothing to end."""


class Parts:
    """The parts of one pass, forward or backward, through a region."""

    def __init__(self, region: Region, phase: str, shapes: Any) -> None:
        self._region = region
        self._phase = phase
        self._shapes = shapes
        self._open = False
        self._number = 0

    def launch(self) -> None:
        """An operator of the device: it belongs to the open part, or begins one."""
        if not self._open:
            self._open = True
            self._number += 1
            RECORDER.totals["launch"] += 1
            self._region.look_up(self._phase, self._number, self._shapes)

    def split(self) -> None:
        """An operator of the host: the next one of the device begins a part."""
        self._open = False


class Region:
    """One graph that torch.compile captured, of `num_ops` operators."""

    def __init__(self, number: int, num_ops: int) -> None:
        self._name = f"compiled_{number}"
        self._num_ops = num_ops
        self._seen: dict[tuple[str, int], Any] = {}

    def look_up(self, phase: str, number: int, shapes: Any) -> None:
        """Compile the part for these shapes unless that was done before."""
        before = self._seen.get((phase, number))
        self._seen[phase, number] = shapes
        key = hash((self._name, phase, number, shapes))
        recipe = GRAPH.compiled.get(key)
        if recipe is not None:
            RECORDER.cache_hit(recipe)
            return
        recipe = GRAPH.compiled[key] = f"{self._name}_{phase}_{number}"
        why = "torch.compile" if before is None else _difference(before, shapes)
        RECORDER.compilation(why, recipe, self._num_ops, user_site())

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """One call; its backward pass is recognised by the numbers of its nodes."""
        shapes = tuple([tuple(a.shape) if isinstance(a, Tensor) else a for a in args])
        first = current_sequence()
        with _counted_by(Parts(self, "forward", shapes)):
            out = forward(*args)
        BACKWARD.add(Run(self, shapes, first, current_sequence()), out)
        return out


class Run:
    """The backward pass that waits after one call: autograd's nodes first to last."""

    def __init__(self, region: Region, shapes: Any, first: int, last: int) -> None:
        self.region = region
        self.shapes = shapes
        self.nodes = range(first, last)
        self.task = NO_TASK
        self.parts = Parts(region, "backward", shapes)

    def parts_in(self, task: int) -> Parts:
        """Those of one backward pass; another one starts anew."""
        if task != self.task:
            self.task = task
            self.parts = Parts(self.region, "backward", self.shapes)
        return self.parts


class Backward:
    """Gives what runs in a backward pass to the region that it belongs to."""

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._last: Run | None = None

    def add(self, run: Run, out: Any) -> None:
        """Know `run` for as long as autograd keeps the graph of its outputs."""
        if not run.nodes:
            return
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                metadata: Any = tensor.grad_fn.metadata
                metadata.setdefault("hpu regions", []).append(run)
        self._runs.add(run)

    def launch(self) -> None:
        """One launch for an operator of no region."""
        parts = self._parts()
        if parts is None:
            RECORDER.totals["launch"] += 1
        else:
            parts.launch()

    def split(self) -> None:
        """An operator of the host, in a region or not."""
        parts = self._parts()
        if parts is not None:
            parts.split()

    def _parts(self) -> Parts | None:
        task = backward_task()
        if task == NO_TASK:
            self._last = None
            return None
        node = current_node()
        if node is not None:  # else autograd adds up what two nodes gave
            number = sequence_of(node)
            if self._last is None or number not in self._last.nodes:
                runs = (run for run in self._runs if number in run.nodes)
                self._last = next(runs, None)
        return None if self._last is None else self._last.parts_in(task)


BACKWARD = Backward()
NOBODY = Nobody()


@contextmanager
def _counted_by(launcher: Any) -> Iterator[None]:
    LAUNCHERS.append(launcher)
    try:
        yield
    finally:
        LAUNCHERS.pop()


@contextmanager
def inside_kernel() -> Iterator[None]:
    """What runs inside is no launch of its own."""
    with _counted_by(NOBODY):
        yield


def is_inside() -> bool:
    """Whether a kernel or the forward pass of a region is under way."""
    return bool(LAUNCHERS) and LAUNCHERS[-1] is not BACKWARD


def launch() -> None:
    """Count one launch, by whoever counts now."""
    if LAUNCHERS:
        LAUNCHERS[-1].launch()
    else:
        RECORDER.totals["launch"] += 1


def split() -> None:
    """The host computes in between."""
    if LAUNCHERS:
        LAUNCHERS[-1].split()


def watch_backward() -> None:
    """From the first compiled region on."""
    if BACKWARD not in LAUNCHERS:
        LAUNCHERS.insert(0, BACKWARD)


def _difference(before: Any, now: Any) -> str:
    for number, (old, new) in enumerate(zip(before, now)):
        if old != new:
            return f"shape of input {number}: {old} -> {new}"
    return "torch.compile"
