"""MMCV's policies that fall along a given curve: arguments and formulas.

A field is an argument; `value` is the formula.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from devrun.config.numbers import whole_number
from devrun.errors import ConfigError, ConfigTypeError
from devrun.hooks.schedules.hook import (
    LrUpdaterHook,
    MomentumUpdaterHook,
    ScheduleHook,
    policy,
    require,
)
from devrun.run import Run


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


ANNEALINGS: dict[str, Callable[[float, float, float], float]] = {
    "cos": annealing_cos,
    "linear": annealing_linear,
}


def fraction(name: str, value: Any) -> None:
    """Refuse all but a float from 0 to 1: an int is mostly a count by mistake."""
    fine = isinstance(value, float) and 0.0 <= value <= 1.0
    require(fine, name, "a float from 0.0 to 1.0", value)


@policy
class FixedLrUpdaterHook(LrUpdaterHook):
    """The initial rate throughout; for a warm-up, or to undo other changes."""

    follows_progress = False

    def value(self, base: float, progress: int, total: int) -> float:
        return base


@dataclass(eq=False)
class _Step(ScheduleHook):
    """Times `gamma` every `step`, or at each milestone when `step` is a list.

    Torch's StepLR and MultiStepLR, with a minimum.
    """

    step: int | Sequence[int]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        step = self.step
        if isinstance(step, (list, tuple)):
            what = "each milestone in step"
            self.step = sorted(whole_number(what, each, key="step") for each in step)
        elif type(step) is int:
            whole_number("step", step)
        else:
            raise ConfigTypeError.of(
                "step", f"must be an int or a list of ints, got {step!r}"
            )
        super().__post_init__()

    def stepped(self, base: float, progress: int, least: float | None) -> float:
        """The value after `progress` epochs or iterations."""
        step = self.step
        times = (
            progress // step if isinstance(step, int) else bisect_right(step, progress)
        )
        value = base * self.gamma**times
        return value if least is None else max(value, least)


@policy
class StepLrUpdaterHook(_Step, LrUpdaterHook):
    __doc__ = _Step.__doc__

    min_lr: float | None = None

    def value(self, base: float, progress: int, total: int) -> float:
        return self.stepped(base, progress, self.min_lr)


@policy
class StepMomentumUpdaterHook(_Step, MomentumUpdaterHook):
    __doc__ = _Step.__doc__

    gamma: float = 0.5
    min_momentum: float | None = None

    def value(self, base: float, progress: int, total: int) -> float:
        return self.stepped(base, progress, self.min_momentum)


@policy
class ExpLrUpdaterHook(LrUpdaterHook):
    """Times `gamma` each epoch or iteration (torch's ExponentialLR)."""

    gamma: float

    def value(self, base: float, progress: int, total: int) -> float:
        return base * self.gamma**progress


@policy
class PolyLrUpdaterHook(LrUpdaterHook):
    """Down to `min_lr` as a power of the part of the run that is left.

    DeepLab's "poly" policy, https://arxiv.org/abs/1606.00915, section 4.1; torch's
    PolynomialLR where `min_lr` is 0.
    """

    power: float = 1.0
    min_lr: float = 0.0

    def value(self, base: float, progress: int, total: int) -> float:
        left = float((1.0 - progress / total) ** self.power)
        return (base - self.min_lr) * left + self.min_lr


@policy
class InvLrUpdaterHook(LrUpdaterHook):
    """`base_lr * (1 + gamma * progress) ** -power`: the "inv" policy of Caffe.

    https://caffe.berkeleyvision.org/tutorial/solver.html
    """

    gamma: float
    power: float = 1.0

    def value(self, base: float, progress: int, total: int) -> float:
        return base * float((1.0 + self.gamma * progress) ** -self.power)


def minimum(
    name: str, least: float | None, ratio: float | None
) -> Callable[[float], float]:
    """From the initial to the last value of a group: `least`, or `ratio` of it.

    Raises:
        ConfigError: not exactly one of both is given.
    """
    if least is None and ratio is not None:
        return lambda base: base * ratio
    if least is not None and ratio is None:
        return lambda base: least
    given = "neither" if least is None else f"{least!r} and {ratio!r}"
    raise ConfigError(
        f"give exactly one of {name} and {name}_ratio, got {given}",
        key=f"{name}_ratio",
    )


@dataclass(eq=False)
class _ToMinLr(LrUpdaterHook):
    """A policy that ends at `min_lr` or at `min_lr_ratio` of the initial rate."""

    min_lr: float | None = None
    min_lr_ratio: float | None = None

    def __post_init__(self) -> None:
        self.end = minimum("min_lr", self.min_lr, self.min_lr_ratio)
        super().__post_init__()


@dataclass(eq=False)
class _ToMinMomentum(MomentumUpdaterHook):
    """The same with `min_momentum` and `min_momentum_ratio`."""

    min_momentum: float | None = None
    min_momentum_ratio: float | None = None

    def __post_init__(self) -> None:
        least, ratio = self.min_momentum, self.min_momentum_ratio
        self.end = minimum("min_momentum", least, ratio)
        super().__post_init__()


@policy
class CosineAnnealingLrUpdaterHook(_ToMinLr):
    """Half a cosine from the initial to the minimum rate over the run.

    SGDR, https://arxiv.org/abs/1608.03983, equation 5.
    """

    def value(self, base: float, progress: int, total: int) -> float:
        return annealing_cos(base, self.end(base), progress / total)


@policy
class CosineAnnealingMomentumUpdaterHook(_ToMinMomentum):
    """Half a cosine from the initial to the minimum momentum over the run."""

    def value(self, base: float, progress: int, total: int) -> float:
        return annealing_cos(base, self.end(base), progress / total)


@policy
class LinearAnnealingLrUpdaterHook(_ToMinLr):
    """A straight line from the initial to the minimum rate over the run."""

    def value(self, base: float, progress: int, total: int) -> float:
        return annealing_linear(base, self.end(base), progress / total)


@policy
class LinearAnnealingMomentumUpdaterHook(_ToMinMomentum):
    """A straight line from the initial to the minimum momentum over the run."""

    def value(self, base: float, progress: int, total: int) -> float:
        return annealing_linear(base, self.end(base), progress / total)


@policy
class FlatCosineAnnealingLrUpdaterHook(_ToMinLr):
    """The initial rate for `start_percent` of the run, then half a cosine."""

    start_percent: float = 0.75

    def __post_init__(self) -> None:
        fraction("start_percent", self.start_percent)
        super().__post_init__()

    def value(self, base: float, progress: int, total: int) -> float:
        start = round(total * self.start_percent)
        if progress < start:
            return base
        factor = (progress - start) / (total - start)
        return annealing_cos(base, self.end(base), factor)


@policy
class CosineRestartLrUpdaterHook(_ToMinLr):
    """Half a cosine in each of `periods`, from `restart_weights[i]` of the height.

    SGDR, https://arxiv.org/abs/1608.03983, section 3.

    Raises:
        ConfigError: the lists differ in length, or a run is longer than `periods`.
    """

    periods: Sequence[int] = ()
    restart_weights: Sequence[float] = (1,)

    def __post_init__(self) -> None:
        periods, weights = self.periods, self.restart_weights
        rule = f"as many as the {len(periods)} periods"
        require(len(periods) == len(weights), "restart_weights", rule, weights)
        lengths = (
            whole_number("each of periods", p, key="periods") for p in self.periods
        )
        self.cumulative_periods = tuple(accumulate(lengths))
        super().__post_init__()

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        unit = "epochs" if self.by_epoch else "iterations"
        _, total = self.progress(runner)
        fine = total is None or total <= self.cumulative_periods[-1]
        require(fine, "periods", f"{total} {unit} together, as the run", self.periods)

    def value(self, base: float, progress: int, total: int) -> float:
        bounds = self.cumulative_periods
        index = bisect_right(bounds, progress)
        start = bounds[index - 1] if index else 0
        factor = (progress - start) / (bounds[index] - start)
        weight = self.restart_weights[index]
        return annealing_cos(base, self.end(base), factor, weight)
