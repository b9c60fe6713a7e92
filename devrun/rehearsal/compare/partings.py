"""Where two trainings part: the same seed, data and first weights, step by step.

Two recordings are laid over each other in the order of execution; the first record over
its tolerance is where they part, since all that went into it still agreed.

The tolerance is measured, not chosen: the training of the coarser precision is run
again with its first weights moved by one rounding of it. How far that carries its
records is how far rounding alone may carry another device's. What a training draws
outside of its seed would pass for rounding, so each is repeated first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devrun.rehearsal.compare.operators import (
    Operator,
    first_parting,
    recorded_operators,
)
from devrun.rehearsal.compare.recording import record
from devrun.rehearsal.compare.records import (
    KINDS,
    MOVES,
    SLACK,
    Key,
    Recording,
    distance,
)

SCHEMA = "devrun.compare/3"
IN_BOTH = ("dropout", "batch", "gradient", "update", "buffer")
"""Of these, one that only one training has is a difference, if both devices show it."""
NO_CODE = (*IN_BOTH, "hyperparameter")
"""Kinds of records that no module computes."""


@dataclass(frozen=True)
class Parting:
    """Where two trainings part.

    Attributes:
        step: of the update, from 1.
        kind: `dropout` (a rate), `batch`, `hyperparameter` of the optimizer, `input`
            (what a module hands to one that it calls), `activation`, `loss`,
            `gradient`, `update` of a weight, `buffer`.
        name: the module, parameter or buffer; "" for the model's own step.
        difference: relative, the norm of the difference over the larger norm.
        tolerance: the same, that rounding may cause.
        cause: what usually makes this kind of record part first.
        alone: the training that parts from itself when it is repeated; None where
            both repeat themselves.
        places: `file:line` of the module's code in the first and in the second; one
            where it is the same, none where it is torch's.
        operator: the first in this module whose output parts, in words; None where it
            is not known.
    """

    step: int
    kind: str
    name: str
    difference: float
    tolerance: float
    cause: str
    alone: str | None
    places: list[str]
    operator: str | None

    @property
    def may_be_rounding(self) -> bool:
        """Whether it might be that of many operations, each of which adds some."""
        if self.step > 1:
            return self.kind not in ("batch", "hyperparameter")
        passed = self.kind in ("gradient", "update")
        return passed and math.isfinite(self.difference)


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`; `parting` is None where they agree to the end."""

    first: str
    second: str
    steps: int
    records: int
    kinds: list[str]
    """Kinds of records that both have."""
    closest: float
    """The largest difference over its tolerance until they part; 1 is the limit."""
    unseen: float
    """The largest relative difference of a loss that rounding explains."""
    parting: Parting | None
    schema: str = SCHEMA


CAUSES = {
    "dropout": "another rate of dropout, or a dropout that only one of them has",
    "batch": "other data, another order, or an augmentation that draws otherwise",
    "hyperparameter": "another setting of the optimizer or its schedule",
    "input": "another formula in the code of this module, before it calls",
    "activation": "another formula or setting of this module: a mask, a precision of "
    "its own, a different mode (train or eval), or weights that were not loaded",
    "loss": "the loss is computed otherwise: its reduction, its scale, or the targets",
    "gradient": "backward differs while forward agrees: a custom backward, gradients "
    "not averaged over replicas or micro-batches, clipping, or a frozen part",
    "update": "the update differs while gradients and hyperparameters agree: another "
    "formula of the optimizer, such as a fused one's, or a hook that changes weights",
    "buffer": "what a module keeps beside its weights is computed otherwise, such as "
    "the momentum of a normalisation's statistics",
}
UNSEEN = (
    "the backward pass or the update differs, and one of the devices shows no "
    "gradients: a custom backward, clipping, or the optimizer"
)
UNSEEDED = "a draw outside of the seed: a generator of its own, NumPy's or the system's"


@dataclass(frozen=True)
class Trained:
    """The training of a checked config, in this process: one side of a comparison."""

    cfg: Mapping[str, Any]
    label: str

    def recorded(self, steps: int) -> Recording:
        """Its first `steps` updates, and whether they come again."""
        found = record(self.cfg, self.label, steps)
        found.check_repeated(record(self.cfg, self.label, steps))
        return found

    def measure(self, found: Recording, *, jumps: bool = False) -> None:
        """Add to `noise` of what `recorded` gave what one rounding does.

        Args:
            jumps: what several do, such as to cross a ReLU's kink.
        """
        rounding = found.epsilon * (SLACK if jumps else 1.0)
        for move in range(MOVES, 3 * MOVES) if jumps else range(MOVES):
            moved = record(self.cfg, "", found.steps, rounding, move)
            found.measure(moved, jumps=jumps)

    def operators(self, step: int, name: str, rounding: float = 0.0) -> list[Operator]:
        """Those of a module in an update; of "" those of the whole step."""
        return recorded_operators(self.cfg, step, name, rounding)


def compare(
    first: Trained | Recording, second: Trained | Recording, *, steps: int = 5
) -> Comparison:
    """Run both, lay them over each other, and say where they part.

    Args:
        first, second: of the same model and data; a recording has measured its noise.
        steps: updates.

    Raises:
        DevrunError: one of them cannot be built or run.
    """
    sides = (first, second)
    found = [s if isinstance(s, Recording) else s.recorded(steps) for s in sides]
    for recording, side in zip(found, sides):
        if recording.astray is not None:
            return _astray(found, recording, side, *recording.astray)
    # only the coarser has its own noise: what cancels exactly in fp32 does not in bf16
    at = max((0, 1), key=lambda i: found[i].epsilon)
    side = sides[at]
    if isinstance(side, Trained):
        side.measure(found[at])
    result = _laid_over(found[0], found[1], found[at])
    part = result.parting
    if part is not None and isinstance(side, Trained) and part.may_be_rounding:
        side.measure(found[at], jumps=True)
        result = _laid_over(found[0], found[1], found[at])
        part = result.parting
    if part is None or part.kind in NO_CODE:
        return result
    if not (isinstance(first, Trained) and isinstance(second, Trained)):
        return result
    where = (part.step, "" if part.kind == "loss" else part.name)
    one, two = first.operators(*where), second.operators(*where)
    moved = (first, second)[at].operators(*where, found[at].epsilon)
    least = found[at].least(part.kind)
    operator = first_parting(one, two, (one, two)[at], moved, least)
    return replace(result, parting=replace(part, operator=operator))


def _astray(
    found: Sequence[Recording],
    recording: Recording,
    side: Trained | Recording,
    key: Key,
    apart: float,
) -> Comparison:
    """One of them does not repeat itself: nothing that follows can be trusted."""
    part = _parting(key, found, apart, recording.epsilon**0.5, UNSEEDED)
    operator = None
    if isinstance(side, Trained) and key.kind not in NO_CODE:
        name = "" if key.kind == "loss" else part.name
        once, again = (side.operators(key.step, name) for _ in range(2))
        operator = first_parting(once, again, once, [], recording.least(key.kind))
    part = replace(part, alone=recording.label, operator=operator)
    return _result(found[0], found[1], part)


def _laid_over(one: Recording, two: Recording, coarser: Recording) -> Comparison:
    """The first record over its tolerance, in the order of execution.

    Args:
        coarser: the one of the two with the coarser precision, and its noise.
    """
    closest = unseen = 0.0
    part = None
    nothing = set()  # weights whose gradient is rounding alone, in an update
    for key in _in_order(one, two):
        if key not in one.records or key not in two.records:
            owner = one if key in one.records else two
            cause = f"only {owner.label} has it: {CAUSES[key.kind]}"
            part = _parting(key, (one, two), math.inf, 0.0, cause)
            break
        a, b = one.records[key], two.records[key]
        apart = distance(a, b)
        rounding = SLACK * coarser.noise.get(key, 0.0)
        tolerance = max(coarser.least(key.kind), rounding)
        if coarser.is_nothing(key, a, b):
            nothing.add((key.step, key.name))
        elif key.kind == "update" and (key.step, key.name) in nothing:
            continue
        elif apart <= tolerance:
            closest = max(closest, apart / tolerance)
            unseen = max(unseen, tolerance if key.kind == "loss" else 0.0)
        else:
            part = _parting(key, (one, two), apart, tolerance)
            break
    return _result(one, two, part, closest, unseen)


def _in_order(one: Recording, two: Recording) -> Iterator[Key]:
    """Keys of both, and of one alone where that is a difference."""
    kinds = {k for k in IN_BOTH if k in one.kinds & two.kinds or k == "dropout"}
    for step in range(1, min(one.steps, two.steps) + 1):
        now = [[k for k in side.records if k.step == step] for side in (one, two)]
        yield from (k for k in now[0] if k in two.records or k.kind in kinds)
        yield from (k for k in now[1] if k not in one.records and k.kind in kinds)


def _parting(
    key: Key,
    found: Sequence[Recording],
    apart: float,
    tolerance: float,
    cause: str | None = None,
) -> Parting:
    name, called = key.name, ""
    if key.kind == "input":
        name, called = key.caller, f" {key.name or 'the model'}"
    places = []
    if key.kind not in NO_CODE:
        known = [side.places.get(name) for side in found]
        places = list(dict.fromkeys(place for place in known if place))
    if key.kind == "hyperparameter" and found[0].whole != found[1].whole:
        called = (
            f", which is for {found[0].whole} updates and for {found[1].whole}: not "
            "every device takes a smaller last batch (data.drop_last: true leaves it "
            "out everywhere)"
        )
    if key.kind == "update" and not all("gradient" in one.kinds for one in found):
        cause = cause or UNSEEN
    return Parting(
        step=key.step,
        kind=key.kind,
        name=name,
        difference=apart,
        tolerance=tolerance,
        cause=cause or f"{CAUSES[key.kind]}{called}",
        alone=None,
        places=places,
        operator=None,
    )


def _result(
    one: Recording,
    two: Recording,
    parting: Parting | None,
    closest: float = 0.0,
    unseen: float = 0.0,
) -> Comparison:
    kinds = [kind for kind in KINDS if kind in one.kinds & two.kinds]
    return Comparison(
        first=one.label,
        second=two.label,
        steps=min(one.steps, two.steps),
        records=len(one.records.keys() & two.records.keys()),
        kinds=kinds,
        closest=closest,
        unseen=unseen,
        parting=parting,
    )
