"""A captured forward: operations over numbered slots, replayed with real tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, List

import torch

from poptorch._torch_private import leaves_of, pytree

Env = List[Any]


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor in captured arguments."""

    index: int


@dataclass
class Node:
    """One operation: reads slots, calls a function, writes slots."""

    function: Callable[..., Any]
    leaves: list[Any]
    spec: Any
    writes: list[tuple[int, int]]
    """Pairs of a position among the result's leaves and a slot."""
    grad: bool = True
    name: str = ""
    block: str = ""
    ipu: int = 0
    bytes: int = 0
    bodies: tuple[Tape, ...] = ()
    stack: tuple[tuple[str, int], ...] = ()
    """The calls that led to it, the innermost first, while somebody collects."""
    reads: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.reads = [leaf.index for leaf in self.leaves if isinstance(leaf, Slot)]
        for body in self.bodies:
            self.reads += [slot for node in body.nodes for slot in node.reads]

    def run(self, env: Env, train: bool) -> None:
        """Call the function on what `env` holds now."""
        filled = [env[v.index] if isinstance(v, Slot) else v for v in self.leaves]
        args, kwargs = pytree.tree_unflatten(filled, self.spec)
        if self.bodies:
            args = (env, train, self.bodies, *args)
        try:
            with nullcontext() if self.grad or not train else torch.no_grad():
                result = self.function(*args, **kwargs)
        except IndexError as error:
            calls = [f'\n  File "{file}", line {line}' for file, line in self.stack]
            error.args = ("".join((str(error), *reversed(calls))),)
            raise
        if self.writes:
            values = leaves_of(result)
            for position, slot in self.writes:
                env[slot] = values[position]


@dataclass
class Tape:
    """Operations in order; for a body also what it is given and what it returns."""

    nodes: list[Node] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)

    def run(self, env: Env, train: bool) -> None:
        """Run every operation."""
        for node in self.nodes:
            node.run(env, train)

    def call(self, env: Env, train: bool, inputs: Sequence[Any]) -> list[Any]:
        """Run as a body: inputs in, outputs out."""
        for slot, value in zip(self.given, inputs):
            env[slot] = value
        self.run(env, train)
        return [env[slot] for slot in self.returned]


def last_reads(nodes: Iterable[Node]) -> dict[int, int]:
    """For each slot, the position of the last operation that reads or writes it."""
    last: dict[int, int] = {}
    for position, node in enumerate(nodes):
        for slot in node.reads:
            last[slot] = position
        for _, slot in node.writes:
            last[slot] = position
    return last


def ancestors(nodes: Sequence[Node], slot: int) -> set[int]:
    """Every slot on which `slot` depends, without itself unless through others."""
    found: set[int] = set()
    wanted = {slot}
    for node in reversed(nodes):
        written = {s for _, s in node.writes}
        if written & wanted:
            found.update(node.reads)
            wanted.update(node.reads)
    found.discard(slot)
    return found
