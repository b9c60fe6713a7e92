"""Where two trainings part: the same seed, data and first weights, step by step.

A training is recorded at every step of its first updates: what its modules put out, the
loss, each gradient, what the update adds to each weight. Two recordings are laid over
each other in the order of execution; the first over its tolerance is where they part,
since all that went into it still agreed.

The tolerance is measured, not chosen: the training of the coarser precision is run
again with its first weights moved by one rounding of it. How far that carries its
records is how far rounding alone may carry another device's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from devrun.errors import ConfigError
from devrun.rehearsal.bench import DTYPES
from devrun.rehearsal.operators import Operator, first_parting, recorded_operators
from devrun.rehearsal.recording import (
    MOVES,
    Key,
    Recording,
    distance,
    noise,
    record,
)
from devrun.rehearsal.ulps import ulps

SCHEMA = "devrun.compare/1"
SLACK = 4.0
"""Times the measured effect of one rounding that is still rounding: a step rounds once
an operation, the measurement once a weight."""
FEWEST_ULPS = 4.0
"""Roundings that are always allowed, for records which that one did not reach."""
ORDER = ("rate", "activation", "loss", "logged", "gradient", "update", "weight")


@dataclass(frozen=True)
class Parting:
    """Where two trainings part.

    Attributes:
        step: of the update, from 1.
        kind: `activation`, `loss`, `gradient`, or `update` of a weight; of a recorded
            run `rate` (learning rate, momentum), `logged`, or `weight` of a checkpoint.
        name: the module or the parameter; `loss` of the loss.
        difference: relative, the norm of the difference over that of the first.
        tolerance: the same, that rounding may cause.
        ulps: median over the values, in units in the last place of the precision.
        worst: the largest difference of a value, over the largest value.
        cause: what usually makes this kind of record part first.
        operator: the first in this module whose output parts, in words; None where it
            is not known.
    """

    step: int
    kind: str
    name: str
    difference: float
    tolerance: float
    ulps: float
    worst: float
    cause: str
    operator: str | None = None


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
    parting: Parting | None
    missing: list[str]
    """Records of these kinds that only one of them has, the first few."""
    differences: dict[str, list[Any]] = field(default_factory=dict)
    """What else is not the same in both: config keys, versions, device."""
    schema: str = SCHEMA

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


CAUSES = {
    "rate": "another schedule: learning rate, warm-up, length of the run, or samples "
    "of an update where the rate is scaled by them",
    "activation": "another formula in this module: a mask, a precision of its own, a "
    "different mode (train or eval), a random stream, or weights that were not loaded",
    "loss": "the loss is computed otherwise: its reduction, its scale, or the targets",
    "logged": "another seed, data or order of them, other first weights, dropout on "
    "another device, or what the code of the model or the loss computes",
    "gradient": "backward differs while forward agrees: a custom backward, gradients "
    "not averaged over replicas or micro-batches, clipping, or a frozen part",
    "update": "the update differs while the gradients agree: learning rate, epsilon, "
    "momentum or weight decay of the optimizer, their order, or a fused optimizer",
    "weight": "the updates differ while the logged values agree: epsilon, momentum or "
    "weight decay of the optimizer, or a part that the loss hardly shows",
}


class Side:
    """One of two trainings that are compared: a subclass says how it is recorded."""

    label: str
    measures = True
    """Whether it can be run again, for its noise and its operators."""

    def record(self, steps: int, rounding: float = 0.0, move: int = 0) -> Recording:
        """Its first `steps` updates.

        Args:
            rounding: relative size of random changes of the first weights.
            move: the seed of those changes.
        """
        raise NotImplementedError

    def measure(self, recording: Recording, steps: int) -> None:
        """Fill `noise` of what `record` gave."""
        for move in range(MOVES):
            noise(recording, self.record(steps, recording.epsilon, move))

    def operators(self, step: int, name: str, rounding: float = 0.0) -> list[Operator]:
        """Those of a module in an update; of "" those of model and loss."""
        return []


@dataclass
class Trained(Side):
    """The training of a checked config, in this process."""

    cfg: Mapping[str, Any]
    label: str

    def record(self, steps: int, rounding: float = 0.0, move: int = 0) -> Recording:
        return record(self.cfg, self.label, steps, rounding, move)

    def operators(self, step: int, name: str, rounding: float = 0.0) -> list[Operator]:
        return recorded_operators(self.cfg, step, name, rounding=rounding)


class Kept(Side):
    """A recording that was read from a file, with its noise."""

    measures = False

    def __init__(self, recording: Recording) -> None:
        self.recording, self.label = recording, recording.label
        self.steps = max((key.step for key in recording.records), default=1)
        """Updates that it has."""

    def record(self, steps: int, rounding: float = 0.0, move: int = 0) -> Recording:
        early = {k: v for k, v in self.recording.records.items() if k.step <= steps}
        return replace(self.recording, records=early)


def compare(
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    labels: tuple[str, str],
    *,
    steps: int = 5,
) -> Comparison:
    """Run both, lay them over each other, and say where they part.

    Args:
        first, second: checked configs, of the same model and data.
        labels: their names in what is said.
        steps: updates.

    Raises:
        ConfigError: `steps` is below 1, or the trainings have no record in common.
        DevrunError: one of them cannot be built or run.
    """
    one, two = Trained(first, labels[0]), Trained(second, labels[1])
    return compared(one, two, steps=steps)


def compared(one: Side, two: Side, *, steps: int) -> Comparison:
    """The same of any two sides, of which one at least can be run again or brings the
    noise that it measured."""
    if steps < 1:
        raise ConfigError(f"--steps must be 1 or more, got {steps}")
    sides = [(one.record(steps), one), (two.record(steps), two)]
    # only the coarser has its own noise: what cancels exactly in fp32 does not in bf16
    known = [pair for pair in sides if pair[0].noise or pair[1].measures]
    coarser, side = max(known, key=lambda pair: pair[0].epsilon)
    if not coarser.noise:
        side.measure(coarser, steps)
    found = laid_over(sides[0][0], sides[1][0], coarser)
    part, shown = found.parting, one.measures and two.measures
    if part is None or part.kind not in ("activation", "loss") or not shown:
        return found
    where = (part.step, "" if part.kind == "loss" else part.name.partition(" ")[0])
    operator = first_parting(
        one.operators(*where),
        two.operators(*where),
        side.operators(*where, rounding=coarser.epsilon),
        of_first=side is one,
        least=FEWEST_ULPS * coarser.epsilon,
        slack=SLACK,
    )
    return replace(found, parting=replace(part, operator=operator))


def laid_over(one: Recording, two: Recording, coarser: Recording) -> Comparison:
    """The first record over its tolerance, in the order of execution.

    Args:
        coarser: the one of the two with the coarser precision, and its noise.
    """
    keys = [key for key in one.records if key in two.records]
    if not keys:
        raise ConfigError(
            f"{one.label} and {two.label} have no record in common: their models have "
            "other names for everything"
        )
    kinds = [kind for kind in ORDER if kind in one.kinds & two.kinds]
    odd = one.records.keys() ^ two.records.keys()
    missing = [k for k in (*one.records, *two.records) if k in odd and k.kind in kinds]
    closest, parting = 0.0, None
    for key in sorted(keys, key=lambda k: (k.step, ORDER.index(k.kind))):
        a, b = one.records[key], two.records[key]
        blur = max(one.blur.get(key, 0.0), two.blur.get(key, 0.0))
        rounding = SLACK * coarser.noise.get(key, 0.0)
        tolerance = max(FEWEST_ULPS * coarser.epsilon, rounding) + blur
        apart = distance(a, b)
        if not apart <= tolerance:
            parting = _parting(key, a, b, apart, tolerance, coarser.precision)
            break
        closest = max(closest, apart / tolerance)
    return Comparison(
        first=one.label,
        second=two.label,
        steps=max(key.step for key in keys),
        records=len(keys),
        kinds=kinds,
        closest=closest,
        parting=parting,
        missing=[f"{k.kind} {k.name} of step {k.step}" for k in missing[:5]],
    )


def _parting(
    key: Key, a: Tensor, b: Tensor, apart: float, tolerance: float, precision: str
) -> Parting:
    same = a.shape == b.shape
    worst = float((a - b).abs().max() / a.abs().max()) if same else math.inf
    units = ulps(a, b, DTYPES[precision]) if same else math.inf
    return Parting(
        step=key.step,
        kind=key.kind,
        name=key.name + (f" (run {key.call + 1})" if key.call else ""),
        difference=apart,
        tolerance=tolerance,
        ulps=units,
        worst=worst,
        cause=CAUSES[key.kind],
    )
