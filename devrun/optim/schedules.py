"""Schedules as pure functions of progress: the one place where formulas live.

`base` is a group's initial value (a learning rate or a momentum), `progress` the
completed epochs or iterations, `total` how many there will be. A schedule is worked
out from these alone, so a resumed run needs no state to go on exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = [
    "ANNEALING",
    "WARMUPS",
    "Phase",
    "annealing_cos",
    "annealing_linear",
    "cosine_cooldown",
    "cosine_restart",
    "cyclic",
    "exponential",
    "flat_cosine",
    "inverse",
    "one_cycle",
    "one_cycle_phases",
    "polynomial",
    "step_decay",
    "warmup_factor",
]

WARMUPS = ("constant", "linear", "exp")


def annealing_cos(
    start: float, end: float, factor: float, weight: float = 1.0
) -> float:
    """From `weight * start + (1 - weight) * end` to `end` along half a cosine.

    `factor` goes from 0 to 1. SGDR, https://arxiv.org/abs/1608.03983, equation 5.
    """
    return end + 0.5 * weight * (start - end) * (1.0 + math.cos(math.pi * factor))


def annealing_linear(start: float, end: float, factor: float) -> float:
    """From `start` to `end` in a straight line, as `factor` goes from 0 to 1."""
    return start + (end - start) * factor


ANNEALING: dict[str, Callable[[float, float, float], float]] = {
    "cos": annealing_cos,
    "linear": annealing_linear,
}


def step_decay(
    base: float,
    progress: int,
    step: int | Sequence[int],
    gamma: float,
    minimum: float | None = None,
) -> float:
    """`base * gamma ** k`, not below `minimum`.

    `k` counts whole periods of `step`, or the milestones reached when `step` is an
    ascending sequence (torch's StepLR and MultiStepLR).
    """
    count = progress // step if isinstance(step, int) else bisect_right(step, progress)
    value = base * gamma**count
    return value if minimum is None else max(value, minimum)


def exponential(base: float, progress: int, gamma: float) -> float:
    """`base * gamma ** progress` (torch's ExponentialLR)."""
    return base * gamma**progress


def polynomial(
    base: float, progress: int, total: int, power: float, minimum: float
) -> float:
    """From `base` to `minimum` as `(1 - progress / total) ** power`.

    DeepLab's "poly" policy, https://arxiv.org/abs/1606.00915, section 4.1; torch's
    PolynomialLR where `minimum` is 0.
    """
    value: float = (base - minimum) * (1.0 - progress / total) ** power + minimum
    return value


def inverse(base: float, progress: int, gamma: float, power: float) -> float:
    """`base * (1 + gamma * progress) ** -power`: the "inv" policy of Caffe.

    https://caffe.berkeleyvision.org/tutorial/solver.html
    """
    value: float = base * (1.0 + gamma * progress) ** -power
    return value


def flat_cosine(
    base: float, end: float, progress: int, total: int, start_percent: float
) -> float:
    """`base` for the first `start_percent` of the run, then a cosine to `end`."""
    start = round(total * start_percent)
    if progress < start:
        return base
    return annealing_cos(base, end, (progress - start) / (total - start))


def cosine_restart(
    base: float,
    end: float,
    progress: int,
    bounds: Sequence[int],
    weights: Sequence[float],
) -> float:
    """A cosine to `end` in each period, restarted at `weights[i]` of the height.

    `bounds` are where the periods end, ascending. SGDR,
    https://arxiv.org/abs/1608.03983, section 3.

    Raises:
        IndexError: `progress` is not below the last bound.
    """
    index = bisect_right(bounds, progress)
    start = bounds[index - 1] if index else 0
    factor = (progress - start) / (bounds[index] - start)
    return annealing_cos(base, end, factor, weights[index])


def cosine_cooldown(
    base: float, end: float, progress: int, total: int, time: int, ratio: float
) -> float:
    """A cosine to `end`, then `end * ratio` constantly for less than `time` more.

    The schedule MMClassification names CosineAnnealingCooldown.
    """
    annealed = total - time
    if progress > annealed:
        return end * ratio
    return annealing_cos(base, end, progress / annealed if annealed else 1.0)


def cyclic(
    base: float,
    progress: int,
    period: int,
    up: int,
    ratios: tuple[float, float],
    gamma: float,
    anneal: Callable[[float, float, float], float],
) -> float:
    """Each `period`: from 1 to `ratios[0]` in `up` steps, then to `ratios[1]`.

    Both are multiples of `base`; the height above `base` shrinks by `gamma` with each
    cycle. Cyclical rates, https://arxiv.org/abs/1506.01186, section 3.
    """
    cycle, position = divmod(progress, period)
    peak = 1.0 + gamma**cycle * (ratios[0] - 1.0)
    if position < up:
        return anneal(base, base * peak, position / up)
    return anneal(base * peak, base * ratios[1], (position - up) / (period - up))


class Phase(NamedTuple):
    """One stretch of a 1cycle schedule, which ends at step `end`."""

    end: float
    start_level: int
    end_level: int


def one_cycle_phases(
    total: int, pct_start: float, three_phase: bool = False
) -> tuple[Phase, ...]:
    """The stretches between the levels (0 initial, 1 peak, 2 final).

    https://arxiv.org/abs/1708.07120; two of them as in fastai and torch's OneCycleLR,
    or the three of the paper.
    """
    first = float(pct_start * total) - 1
    if three_phase:
        second = float(2 * pct_start * total) - 2
        return Phase(first, 0, 1), Phase(second, 1, 0), Phase(total - 1, 0, 2)
    return Phase(first, 0, 1), Phase(total - 1, 1, 2)


def one_cycle(
    levels: tuple[float, float, float],
    progress: int,
    phases: Sequence[Phase],
    anneal: Callable[[float, float, float], float],
) -> float:
    """The value at step `progress`; the final level from the last step on."""
    start = 0.0
    for end, start_level, end_level in phases:
        if progress <= end:
            length = end - start
            factor = (progress - start) / length if length else 1.0
            return anneal(levels[start_level], levels[end_level], factor)
        start = end
    return levels[2]


def warmup_factor(kind: str, iteration: int, length: int, ratio: float) -> float:
    """What the regular value is multiplied by in iteration 0 to `length` - 1.

    `constant`: `ratio`; `linear` and `exp`: from `ratio` to 1, evenly in difference
    or in quotient. Gradual warm-up, https://arxiv.org/abs/1706.02677, section 2.2.
    """
    if kind == "constant":
        return ratio
    remaining = 1.0 - iteration / length
    if kind == "linear":
        return 1.0 - remaining * (1.0 - ratio)
    return float(ratio**remaining)
