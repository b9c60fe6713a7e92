"""The graph that lazy mode accumulates between two flushes, and its cache.

Operators run at once on the host; what is kept is the description that the vendor's
bridge would have compiled: the operators in order with their connections and keyed
scalars, the layout of every tensor from outside, and how many results are alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from habana_frameworks._emulation.bus import BUS, EventId
from habana_frameworks._emulation.memory import COUNTERS
from habana_frameworks._emulation.recorder import RECORDER
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks._emulation.sites import Site, user_site

Layout = tuple[Any, ...]
FIRST_STAGE = 10
"""After a data-dependent operator graphs are cut at 10, 20, 40 ... operators."""


class LazyGraph:
    """The open graph. `serial` tells tensors of this graph from older ones."""

    def __init__(self) -> None:
        self.serial = 1
        self.compiled: dict[int, str] = {}
        self.layouts: dict[int, list[Layout]] = {}
        self.seen_ops: dict[int, list[tuple[Any, ...]]] = {}
        self.cut = SETTINGS.max_compound_ops
        self.graphs_in_iteration = 0
        self._open()

    def _open(self) -> None:
        self.ops: list[Any] = []
        self.inputs: list[Layout] = []
        self.input_sites: list[Site | None] = []
        self.values = 0
        self.num_ops = 0
        COUNTERS.open(self.serial)

    def operand(self, tensor: Any) -> int:
        """The number of `tensor` in this graph; a new input if it is from outside."""
        if tensor._graph == self.serial:
            return int(tensor._value)
        host = tensor._host
        self.inputs.append(
            (host.shape, host.dtype, host.stride(), host.storage_offset())
        )
        self.input_sites.append(tensor.__dict__.get("_site"))
        tensor._graph = self.serial
        tensor._value = value = self.values
        self.values = value + 1
        return value

    def append(self, key: tuple[Any, ...], results: list[Any]) -> None:
        """One operator: `key` describes it, `results` get numbers."""
        value = self.values
        serial = self.serial
        for tensor in results:
            tensor._graph = serial
            tensor._value = value
            tensor._memory.graph = serial
            value += 1
        self.values = value
        self.ops.append(key)
        self.num_ops += 1
        if self.num_ops >= self.cut:
            staged = self.cut < SETTINGS.max_compound_ops
            self.flush("stage submission" if staged else "maximal graph size")
            if staged:
                self.cut = min(2 * self.cut, SETTINGS.max_compound_ops)

    def is_pending(self, tensor: Any) -> bool:
        """Whether `tensor`, or a view of its memory, waits for this graph."""
        return bool(self.ops) and tensor._memory.graph == self.serial

    def stage(self) -> None:
        """A data-dependent operator ran: submit small graphs until the next mark."""
        self.cut = min(FIRST_STAGE, SETTINGS.max_compound_ops)

    def end_iteration(self) -> None:
        """The count of graphs in an iteration starts at zero."""
        self.graphs_in_iteration = 0

    def user_mark(self) -> None:
        """What `mark_step` does; graphs grow without bound again."""
        self.flush("mark_step")
        self.cut = SETTINGS.max_compound_ops

    def flush(self, cause: str) -> None:
        """Close the graph, look it up, compile on a miss, launch."""
        if not self.ops:
            return
        RECORDER.totals["flush"] += 1
        RECORDER.totals["launch"] += 1
        self.graphs_in_iteration += 1
        alive = COUNTERS.alive_in_graph
        deterministic = torch.are_deterministic_algorithms_enabled()
        key = hash((tuple(self.ops), tuple(self.inputs), alive, deterministic))
        recipe = self.compiled.get(key)
        if recipe is not None:
            RECORDER.cache_hit(recipe)
        else:
            recipe = f"recipe_{len(self.compiled)}_{self.num_ops}_ops"
            self.compiled[key] = recipe
            reason, site = self._why()
            RECORDER.compilation(reason, recipe, self.num_ops, site or user_site())
        RECORDER.totals[f"flush by {cause}"] += 1
        self.serial += 1
        self._open()

    def _why(self) -> tuple[str, Site | None]:
        """Why this graph was not in the cache, and the line to look at, if known."""
        names = hash(tuple(op[0] for op in self.ops))
        before = self.layouts.get(names)
        ops_before = self.seen_ops.get(names)
        self.layouts[names], self.seen_ops[names] = self.inputs, self.ops
        if before is None or ops_before is None:
            return "new operators", None
        pairs = zip(before, self.inputs, self.input_sites, strict=False)
        for number, (old, new, site) in enumerate(pairs):
            if old[0] != new[0]:
                shapes = f"{tuple(old[0])} -> {tuple(new[0])}"
                return f"shape of input {number}: {shapes}", site
            if old != new:
                return f"layout of input {number}: {old[1:]} -> {new[1:]}", site
        for old_op, new_op in zip(ops_before, self.ops, strict=True):
            if old_op[-1] != new_op[-1]:
                return f"a Python value: {old_op[-1]} -> {new_op[-1]}", None
        return "connections or results still alive", None


GRAPH = LazyGraph()
_iteration_closures: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []


def flush(cause: str) -> None:
    """Close the open graph; nothing in eager mode."""
    if SETTINGS.lazy:
        GRAPH.flush(cause)


def mark_step() -> None:
    """The user's step marker, with the closures that wait for it."""
    if not SETTINGS.lazy:
        return
    GRAPH.user_mark()
    BUS.publish(EventId.MARK_STEP)
    while _iteration_closures:
        closure, args = _iteration_closures.pop(0)
        closure(*args)


def add_closure(closure: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run `closure(*args)` once, right after the next marker."""
    _iteration_closures.append((closure, args))
