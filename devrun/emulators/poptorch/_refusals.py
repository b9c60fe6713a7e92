"""Refusals written down instead of raised, where somebody collects them.

A compilation ends at the first operation that it refuses. Who collects refusals gets
them all: a refused operation is carried out as CPU torch does it, and a value that is
asked for is that of the first micro-batch. What a graph with refusals computes is worth
nothing; that it goes on is.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Callable, ContextManager, Tuple

import torch
from torch import nn

from poptorch import _rules
from poptorch._errors import Error
from poptorch._half import FloatPartials
from poptorch._tape import Slot, Tape
from poptorch._torch_private import PACKS, DisableTorchFunctionSubclass, pytree

Stack = Tuple[Tuple[str, int], ...]
Around = Callable[[nn.Module], ContextManager[Any]]
Before = Callable[[nn.Module, Any], None]
_OWN = str(Path(__file__).parent)
_DEEP = 60
_TURNS = 200
"""Refusals at one line, after which it is a loop that only values would end."""
NUMBERS = "numbers"
"""The operation of what is not refused but loses its value."""
_collecting: list[Refusals] = []


@dataclass(frozen=True)
class Refusal:
    """One thing that the device's compiler refuses.

    `stack` has the file and line of each call that led to it, the innermost first,
    without the emulator's own; it is empty where no line is known. `value` is the
    tensor of the host that was refused, if it is one.
    """

    operation: str
    message: str
    training: bool
    stack: Stack = ()
    value: torch.Tensor | None = None


@dataclass
class Refusals:
    """What `collected` yields; `found` grows with each compilation."""

    found: list[Refusal] = field(default_factory=list)
    results: dict[Any, Any] = field(default_factory=dict)
    """Values that a capture was given, so that a later one of the same goes the same
    way."""
    turns: dict[Any, int] = field(default_factory=dict)
    """How often each line was refused."""
    around: Around = nullcontext
    """Entered with the model around each capture."""
    before: Before | None = None
    """Called with the model and what identifies its graph before each run."""


@contextmanager
def collected(
    around: Around = nullcontext, before: Before | None = None
) -> Iterator[list[Refusal]]:
    """Within, what a compilation refuses is appended to the list and got past."""
    refusals = Refusals(around=around, before=before)
    _collecting.append(refusals)
    try:
        yield refusals.found
    finally:
        _collecting.remove(refusals)


def collecting() -> Refusals | None:
    """Where refusals go now; None: they are raised."""
    return _collecting[-1] if _collecting else None


def refuse(
    error: Error,
    operation: str,
    training: bool,
    stack: Stack | None = None,
    value: torch.Tensor | None = None,
) -> None:
    """Write `error` down.

    Raises:
        Error: nobody collects, or the line is in a loop that does not end.
    """
    refusals = collecting()
    if refusals is None:
        raise error
    place = stack_here() if stack is None else stack
    line = operation, place[:1]
    refusals.turns[line] = refusals.turns.get(line, 0) + 1
    if place and refusals.turns[line] > _TURNS:
        raise Error(
            f"{error.message} It was met {_TURNS} times at one line: a loop whose end "
            "depends on values does not end while a graph is compiled."
        )
    refusals.found.append(Refusal(operation, error.message, training, place, value))


def tried(
    check: Callable[..., Any],
    *args: Any,
    operation: str,
    training: bool,
    instead: Any = None,
) -> Any:
    """What `check` returns; `instead`, where it refuses and somebody collects."""
    try:
        return check(*args)
    except Error as error:
        refuse(error, operation, training)
        return instead


def stack_here() -> Stack:
    """The calls that led here, the innermost first."""
    found: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _DEEP:
        if not frame.f_code.co_filename.startswith(_OWN):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


class Detour:
    """How one capture gets past what is refused.

    Args:
        tape: what was captured so far.
        known: the values of what comes from outside, by slot: of one micro-batch, the
            weights and the constants.
        kinds: `input` for the slots of the micro-batch.
    """

    def __init__(
        self,
        tape: Tape,
        known: Mapping[int, torch.Tensor],
        kinds: Mapping[int, str],
        training: bool,
    ) -> None:
        self._tape, self._known, self._kinds = tape, known, kinds
        self._training = training
        self._env: list[Any] = []
        self._done = self._count = 0
        self.places: dict[int, Stack] = {}
        """The calls that led to each loss, while somebody collects."""

    def refuse(
        self,
        error: Error,
        operation: str,
        tape: Tape,
        value: torch.Tensor | None = None,
    ) -> None:
        """Write `error` down, met on `tape`, because of the host's `value` if any.

        Raises:
            Error: nobody collects, or it is in a body, whose tensors have no values.
        """
        if tape is not self._tape:
            raise error
        self._count += 1
        refuse(error, operation, self._training, value=value)

    def note(self, error: Error, tape: Tape) -> None:
        """Write `error` down, which is not refused but computed otherwise."""
        if collecting() is not None and tape is self._tape:
            refuse(error, NUMBERS, self._training)

    def overflow(
        self, function: Callable[..., Any], leaves: Iterable[Any], spec: Any, tape: Tape
    ) -> float:
        """The number that the first micro-batch has too large for what it is cast to;
        0 without one."""
        if collecting() is None or tape is not self._tape:
            return 0.0
        return float(self._call(partial(_rules.overflow, function), leaves, spec))

    def place(self, slot: int) -> None:
        """The loss in `slot` is made now."""
        if collecting() is not None:
            self.places[slot] = stack_here()

    def value(
        self, function: Callable[..., Any], name: str, leaves: Iterable[Any], spec: Any
    ) -> Any:
        """What the function gives, or gave a capture of the same shapes before this.

        So a model that is captured again goes the same way.

        Args:
            leaves: those of its arguments; tensors of the graph are slots.
        """
        inputs = (s for s, kind in self._kinds.items() if kind == "input")
        shapes = tuple(self._known[slot].shape for slot in inputs)
        key = (self._training, shapes, self._count, name)
        before = getattr(collecting(), "results", {})
        if key not in before:
            before[key] = self._call(function, leaves, spec)
        return before[key]

    def sized(
        self, function: Callable[..., Any], name: str, leaves: Iterable[Any], spec: Any
    ) -> tuple[Fitted, Any]:
        """A function whose results are always of one size, and tensors of that size."""
        found, kind = pytree.tree_flatten(self.value(function, name, leaves, spec))
        like = [_sized_like(leaf) for leaf in found]
        if name == PACKS:  # torch wants the sizes that it returns on the host
            return Fitted(function, like), pytree.tree_unflatten(
                [like[0], found[1]], kind
            )
        return Fitted(function, like), pytree.tree_unflatten(like, kind)

    def _call(self, function: Callable[..., Any], leaves: Any, spec: Any) -> Any:
        nodes = self._tape.nodes
        random = torch.random.fork_rng(devices=[])
        plain = DisableTorchFunctionSubclass()
        with random, torch.no_grad(), plain, FloatPartials():
            self._make_room()
            for node in nodes[self._done :]:
                node.run(self._env, False)
            self._done = len(nodes)
            filled = [
                self._env[leaf.index] if isinstance(leaf, Slot) else leaf
                for leaf in leaves
            ]
            args, kwargs = pytree.tree_unflatten(filled, spec)
            return function(*args, **kwargs)

    def _make_room(self) -> None:
        """For the tensors that are new since the last call."""
        written = [slot for node in self._tape.nodes for _, slot in node.writes]
        highest = max((*written, *self._known), default=-1)
        for slot in range(len(self._env), highest + 1):
            known = self._known.get(slot)
            self._env.append(None if known is None else known.clone())


class Fitted:
    """Calls a function and cuts or fills its results to the sizes of the capture."""

    def __init__(self, function: Callable[..., Any], like: Sequence[Any]) -> None:
        self._function, self._like = function, like

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten(self._function(*args, **kwargs))
        fitted = [
            _fit(leaf, like.shape) if isinstance(leaf, torch.Tensor) else leaf
            for leaf, like in zip(leaves, self._like)
        ]
        return pytree.tree_unflatten(fitted, spec)


def _sized_like(leaf: Any) -> Any:
    """A tensor's size and type without memory; nothing may be empty in a capture."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    shape = [max(size, 1) for size in leaf.shape]
    return torch.empty(shape, dtype=leaf.dtype, device="meta")


def filled(value: Any) -> Any:
    """A tensor like one that has no memory; what is none, as it is."""
    plain = type(value) is torch.Tensor and value.is_cpu
    if plain or not isinstance(value, torch.Tensor):
        return value
    return torch.zeros(value.shape, dtype=value.dtype)


def reached(result: Any, sources: Iterable[Any]) -> Any:
    """`result` filled, through which gradients reach the tensors of `sources`."""
    tensors = (leaf for leaf in sources if isinstance(leaf, torch.Tensor))
    trained = any(leaf.requires_grad for leaf in tensors) and torch.is_grad_enabled()

    def made(leaf: Any) -> Any:
        like = filled(leaf)
        is_float = isinstance(like, torch.Tensor) and like.is_floating_point()
        if not (trained and is_float):
            return like
        return like.detach().requires_grad_().clone()  # which may be changed in place

    return pytree.tree_map(made, result)


def _fit(value: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    if value.layout is not torch.strided:
        value = value.to_dense()
    for dim, size in enumerate(shape):
        value = value.narrow(dim, 0, min(size, value.shape[dim]))
        if (missing := size - value.shape[dim]) > 0:
            filler = list(value.shape)
            filler[dim] = missing
            value = torch.cat([value, value.new_zeros(filler)], dim)
    return value


def binding_of(module: nn.Module, name: str) -> Stack:
    """The line that binds `self.name` outside of `__init__`; empty if none is found."""
    for kind in type(module).__mro__:
        try:
            file, (lines, first) = (
                inspect.getsourcefile(kind),
                inspect.getsourcelines(kind),
            )
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue  # made without a file
        for method in ast.walk(tree):
            if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                for node in ast.walk(method):
                    if not isinstance(node, ast.Attribute) or node.attr != name:
                        continue
                    if isinstance(node.ctx, (ast.Store, ast.Del)):
                        return ((str(file), first + node.lineno - 1),)
    return ()
