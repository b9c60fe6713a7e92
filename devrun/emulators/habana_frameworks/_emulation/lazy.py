"""The graph that lazy mode accumulates between two flushes, and its cache.

Operators run at once on the host; what is kept is the description that the vendor's
bridge would have compiled: the operators in order with their connections and keyed
scalars, the layout of every tensor from outside, and how many results are alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Tuple

import torch

from habana_frameworks._emulation.bus import BUS, EventId
from habana_frameworks._emulation.memory import COUNTERS
from habana_frameworks._emulation.recorder import PYTHON_VALUE, RECORDER
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks._emulation.sites import Place, Site, user_place, user_site
from habana_frameworks._emulation.torch_private import VIEWS

Layout = Tuple[Any, ...]
FIRST_STAGE = 10
"""After a data-dependent operator graphs are cut at 10, 20, 40 ... operators."""

_SIZES = frozenset({"arange", "expand", "native_group_norm", "view", *VIEWS})
"""Operators whose numbers are no more than the sizes of an operand, or follow them."""


def layout_of(tensor: Any) -> Layout:
    """What of a tensor from outside is in the key of a graph; kept until it changes."""
    host = tensor._host
    layout = (host.shape, host.dtype, host.stride(), host.storage_offset())
    tensor._layout = layout
    return layout


class LazyGraph:
    """The open graph. `serial` tells tensors of this graph from older ones."""

    def __init__(self) -> None:
        self.serial = 1
        self.compiled: dict[int, str] = {}
        self.seen: dict[int, tuple[list[Layout], list[Any]]] = {}
        self.cut = SETTINGS.max_compound_ops
        self.graphs_in_iteration = 0
        self.staged: Place | None = None
        self.changing: set[int] = set()
        """Operators whose scalars changed before: the lines of these are kept."""
        self._open()

    def _open(self) -> None:
        # Flat lists of numbers, so that the garbage collector has nothing to visit.
        self.ops: list[int] = []
        self.wires: list[int] = []
        self.scalars: list[Any] = []
        self.scalar_sites: dict[int, Place | None] = {}
        self.inputs: list[Layout] = []
        self.input_sites: list[Place | None] = []
        self.values = 0
        COUNTERS.open(self.serial)

    def operand(self, tensor: Any) -> int:
        """The number of `tensor` in this graph; a new input if it is from outside."""
        if tensor._graph == self.serial:
            return int(tensor._value)
        self.inputs.append(tensor._layout or layout_of(tensor))
        self.input_sites.append(tensor._site)
        tensor._graph = self.serial
        tensor._value = value = self.values
        self.values = value + 1
        return value

    def append_plain(
        self, plan: Any, operands: list[Any], scalars: tuple[Any, ...], result: Any
    ) -> None:
        """`append` of one operator with one result, its numbers not yet filtered."""
        serial = self.serial
        for tensor in operands:
            if tensor._graph == serial:
                self.wires.append(tensor._value)
            else:
                self.wires.append(self.operand(tensor))
        result._graph = result._memory.graph = serial
        result._value = self.values
        self.values += 1
        self.ops.append(plan.number)
        if scalars and plan.keyed:
            self._keep(plan, scalars)
        if len(self.ops) >= self.cut:
            self._cut()

    def append(
        self,
        plan: Any,
        operands: list[Any],
        scalars: tuple[Any, ...],
        results: list[Any],
    ) -> None:
        """One operator; `scalars` are its numbers that are in the key."""
        self.wires.extend([self.operand(tensor) for tensor in operands])
        self.wires.append(-len(results))
        value = self.values
        serial = self.serial
        for tensor in results:
            tensor._graph = tensor._memory.graph = serial
            tensor._value = value
            value += 1
        self.values = value
        self.ops.append(plan.number)
        if scalars:
            self._keep(plan, scalars)
        if len(self.ops) >= self.cut:
            self._cut()

    def _keep(self, plan: Any, scalars: tuple[Any, ...]) -> None:
        if plan.number in self.changing:
            self.scalar_sites[len(self.scalars)] = user_place()
        self.scalars.append((plan, scalars))

    def _cut(self) -> None:
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
        self.staged = user_place()

    def end_iteration(self) -> None:
        """The count of graphs in an iteration starts at zero."""
        self.graphs_in_iteration = 0

    def user_mark(self) -> None:
        """What `mark_step` does; graphs grow without bound again."""
        RECORDER.totals["mark_step"] += 1
        self.flush("mark_step")
        self.cut = SETTINGS.max_compound_ops
        self.staged = None

    def flush(self, cause: str) -> None:
        """Close the graph, look it up, compile on a miss, launch."""
        if not self.ops:
            return
        RECORDER.totals["flush"] += 1
        RECORDER.totals["launch"] += 1
        self.graphs_in_iteration += 1
        alive = COUNTERS.alive_in_graph
        deterministic = torch.are_deterministic_algorithms_enabled()
        parts = (self.ops, self.wires, self.scalars, self.inputs)
        key = hash((*map(tuple, parts), alive, deterministic))
        recipe = self.compiled.get(key)
        if recipe is not None:
            RECORDER.cache_hit(recipe)
        else:
            recipe = f"recipe_{len(self.compiled)}_{len(self.ops)}_ops"
            self.compiled[key] = recipe
            reason, site = self._why()
            RECORDER.compilation(reason, recipe, len(self.ops), site or user_site())
        RECORDER.totals[f"flush by {cause}"] += 1
        self.serial += 1
        self._open()

    def _why(self) -> tuple[str, Site | None]:
        """Why this graph was not in the cache, and the line to look at, if known."""
        names = hash(tuple(self.ops))
        seen = self.seen.get(names)
        self.seen[names] = self.inputs, self.scalars
        if seen is None:
            return "new operators", None
        before, scalars_before = seen
        pairs = zip(before, self.inputs, self.input_sites)
        made = ""
        for number, (old, new, site) in enumerate(pairs):
            if old[0] != new[0]:
                shapes = f"{tuple(old[0])} -> {tuple(new[0])}"
                # what follows a data-dependent operator has its sizes from there
                place = site or self.staged
                said = f"shape of input {number}: {shapes}"
                if place is not None:
                    return said, Site(*place)
                made = made or said  # by a factory, whose size is a number too
                continue
            if old != new:
                layouts = f"{old[1:]} -> {new[1:]}"
                return f"layout of input {number}: {layouts}", site and Site(*site)
        both = enumerate(zip(scalars_before, self.scalars))
        changed = [at for at, (old, new) in both if old != new]
        for at in changed:
            # the sizes of what another number has changed follow from it
            if at == changed[0] or self.scalars[at][0].base not in _SIZES:
                self._tell(at)
        if changed:
            (_, old), (_, new) = scalars_before[changed[0]], self.scalars[changed[0]]
            return made or f"a Python value: {old} -> {new}", None
        return made or "connections or results still alive", None

    def _tell(self, at: int) -> None:
        """Note the line whose number is another one than before, once it is kept."""
        plan = self.scalars[at][0]
        self.changing.add(plan.number)
        if (place := self.scalar_sites.get(at)) is not None:
            RECORDER.note(PYTHON_VALUE, plan.full_name, site=Site(*place))


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
