"""The operators that a module runs in one step, and the first whose output parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.hooks.base import Hook
from devrun.rehearsal.compare.recording import prepared, shows_steps
from devrun.rehearsal.compare.records import SLACK, distance, kept
from devrun.run import Run
from devrun.tensors import tensors_in

MOST, VALUES = 4000, 1 << 12
"""Operators of a module that are kept, and values of each tensor."""


@dataclass(frozen=True)
class Operator:
    """One operator that ran, such as `aten.softmax.int`, what it was given and gave."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    draws: bool
    """Whether it draws random numbers."""


class _Listing(TorchDispatchMode):
    """Lists the operators that run while it is entered."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """A function that the model has compiled runs compiled, unlisted."""
        return True

    def __init__(self, found: list[Operator]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if len(self.found) >= MOST:
            return func(*args, **(kwargs or {}))
        given = _values([args, kwargs])  # before an operator that works in place
        out = func(*args, **(kwargs or {}))
        draws = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        self.found.append(Operator(str(func), given, _values(out), draws))
        return out


def _values(value: Any) -> tuple[Tensor, ...]:
    return tuple(kept(t, VALUES) for t in tensors_in(value) if t.numel())


class _Watch(Hook):
    """Lists the operators of one module, or of "" those of a whole step."""

    priority = "LOWEST"

    def __init__(self, step: int, name: str, found: list[Operator]) -> None:
        self.step, self.name = step, name
        self._listing = _Listing(found)
        self._handles: list[Any] = []

    def before_train_iter(self, runner: Run) -> None:
        if runner.iter + 1 != self.step:
            return
        if not self.name:
            self._enter()
            return
        module = runner.model.get_submodule(self.name)
        self._handles = [
            module.register_forward_pre_hook(self._enter),
            module.register_forward_hook(self._leave, always_call=True),
        ]

    def after_train_iter(self, runner: Run) -> None:
        if not self.name and runner.iter + 1 == self.step:
            self._leave()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _enter(self, *_: Any) -> None:
        self._listing.__enter__()

    def _leave(self, *_: Any) -> None:
        self._listing.__exit__(None, None, None)


def recorded_operators(
    cfg: Mapping[str, Any], step: int, name: str, rounding: float = 0.0
) -> list[Operator]:
    """The operators of module `name` in update `step`; of "" those of the whole step.

    Empty where the device shows none.

    Raises:
        DevrunError: as the training would.
    """
    found: list[Operator] = []
    with prepared(cfg, step, rounding, 0) as (training, _):
        if shows_steps(training):
            training.runner.register_hook(_Watch(step, name, found))
            training.run()
    return found


def first_parting(
    one: Sequence[Operator],
    two: Sequence[Operator],
    base: Sequence[Operator],
    moved: Sequence[Operator],
    least: float,
) -> str | None:
    """The operator whose inputs agree and whose output does not, in words.

    Where the two run other operators, whose results part: the first of these.

    Args:
        base, moved: those of the side of the coarser precision, and from moved weights.
        least: the relative difference that is always allowed.
    """

    def parts(index: int, a: Sequence[Tensor], b: Sequence[Tensor], what: str) -> bool:
        carried = 0.0
        if index < min(len(base), len(moved)) and base[index].name == moved[index].name:
            carried = _apart(getattr(base[index], what), getattr(moved[index], what))
        return not _apart(a, b) <= max(least, SLACK * carried)

    if not one or not two:
        return None
    ours, theirs = ([operator.name for operator in side] for side in (one, two))
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    other = None  # the last place where they run different operators
    for tag, start, end, begin, until in blocks:
        if tag != "equal":
            other = _instead(one, two, (start, end), (begin, until))
            continue
        for i, j in zip(range(start, end), range(begin, until)):
            index = i if base is one else j
            if parts(index, one[i].inputs, two[j].inputs, "inputs"):
                return other or f"the inputs of {_words(one, i)} differ"
            if parts(index, one[i].outputs, two[j].outputs, "outputs"):
                return _words(one, i)
    return other


def _instead(
    one: Sequence[Operator],
    two: Sequence[Operator],
    ours: tuple[int, int],
    theirs: tuple[int, int],
) -> str:
    if ours[0] == ours[1]:
        return f"{_words(two, theirs[0])}, which only the second runs"
    if theirs[0] == theirs[1]:
        return f"{_words(one, ours[0])}, which only the first runs"
    return f"{_words(one, ours[0])}, where the second runs {two[theirs[0]].name}"


def _words(side: Sequence[Operator], index: int) -> str:
    draws = ", which draws random numbers" if side[index].draws else ""
    return f"{side[index].name} (number {index + 1} of {len(side)}){draws}"


def _apart(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return max(map(distance, a, b), default=0.0)
