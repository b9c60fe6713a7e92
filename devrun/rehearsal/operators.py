"""The operators that a module runs in one step, and the first whose output parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.hooks.base import Hook
from devrun.rehearsal.recording import (
    distance,
    kept,
    move_weights,
    short,
    shows_steps,
    without_dropout,
)
from devrun.run import Run
from devrun.tensors import tensors_in

MOST, VALUES = 4000, 1 << 14
"""Operators of a module that are kept, and values of each output."""


@dataclass(frozen=True)
class Operator:
    """One operator that ran, such as `aten.softmax.int`, and what it put out."""

    name: str
    outputs: tuple[Tensor, ...]


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
        out = func(*args, **(kwargs or {}))
        if len(self.found) < MOST:
            outputs = tuple(kept(t, VALUES) for t in tensors_in(out) if t.numel())
            self.found.append(Operator(str(func), outputs))
        return out


class _Watch(Hook):
    """Lists the operators of one module, in one step."""

    priority = "LOWEST"

    def __init__(self, step: int, name: str, found: list[Operator]) -> None:
        self.step, self.name, self.found = step, name, found
        self._listing = _Listing(found)
        self._handles: list[Any] = []

    def before_train_iter(self, runner: Run) -> None:
        if runner.iter + 1 != self.step:
            return
        if not self.name:  # the loss is computed around the model
            self._enter()
            return
        module = runner.model.get_submodule(self.name)
        self._handles = [
            module.register_forward_pre_hook(self._enter),
            module.register_forward_hook(self._leave, always_call=True),
        ]

    def after_backward(self, runner: Run) -> None:
        if not self.name and runner.iter + 1 == self.step:
            self._leave()

    def after_train_iter(self, runner: Run) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _enter(self, *_: Any) -> None:
        self._listing.__enter__()

    def _leave(self, *_: Any) -> None:
        self._listing.__exit__(None, None, None)


def recorded_operators(
    cfg: Mapping[str, Any], step: int, name: str, *, rounding: float = 0.0
) -> list[Operator]:
    """The operators of module `name` in update `step`; of "" those of model and loss.

    Empty where the device shows none.

    Raises:
        DevrunError: as the training would.
    """
    found: list[Operator] = []
    with short(cfg, step) as training:
        if not shows_steps(training):
            return found
        training.runner.register_hook(_Watch(step, name, found))
        move_weights(training.runner.model, rounding, 0)
        without_dropout(training.runner.model)
        training.run()
    return found


def first_parting(
    one: Sequence[Operator],
    two: Sequence[Operator],
    moved: Sequence[Operator],
    *,
    of_first: bool,
    least: float,
    slack: float,
) -> str | None:
    """The first operator that is another, or puts out something else, in words.

    Args:
        moved: those of the side with the coarser precision from moved weights.
        of_first: whether that side is `one`.
        least, slack: the relative distance always allowed, and how often that to
            `moved` is.
    """
    base = one if of_first else two
    for index, (a, b) in enumerate(zip(one, two, strict=False)):
        place = f"number {index + 1} of {len(one)}"
        if a.name != b.name:
            return f"{a.name} ({place}), where the second runs {b.name}"
        carried = 0.0
        if index < len(moved) and moved[index].name == a.name:
            carried = _apart(base[index], moved[index])
        if not _apart(a, b) <= max(least, slack * carried):
            return f"{a.name} ({place})"
    if len(one) != len(two) and one and two:
        longer = max(one, two, key=len)
        which = "first" if longer is one else "second"
        rest = longer[min(len(one), len(two))]
        return f"{rest.name}, which only the {which} runs"
    return None


def _apart(a: Operator, b: Operator) -> float:
    pairs = zip(a.outputs, b.outputs, strict=False)
    return max((distance(x, y) for x, y in pairs), default=0.0)
