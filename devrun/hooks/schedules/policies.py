"""MMCV's policies that fall along a given curve: arguments and formulas.

A field is an argument; `value` is the formula.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from devrun.errors import ConfigError
from devrun.hooks.schedules.checks import (
    annealing_cos,
    annealing_linear,
    exactly_one,
    fraction,
    restart_bounds,
    step_argument,
)
from devrun.hooks.schedules.hook import (
    LrUpdaterHook,
    MomentumUpdaterHook,
    ScheduleHook,
    policy,
)
from devrun.run import Run


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
        self.step = step_argument(self.step)
        self.minimum: float | None = getattr(self, f"min_{self.quantity}")
        super().__post_init__()

    def value(self, base: float, progress: int, total: int) -> float:
        milestones = self.step
        if isinstance(milestones, int):
            count = progress // milestones
        else:
            count = bisect_right(milestones, progress)
        value = base * self.gamma**count
        return value if self.minimum is None else max(value, self.minimum)


@policy
class StepLrUpdaterHook(_Step, LrUpdaterHook):
    __doc__ = _Step.__doc__

    min_lr: float | None = None


@policy
class StepMomentumUpdaterHook(_Step, MomentumUpdaterHook):
    __doc__ = _Step.__doc__

    gamma: float = 0.5
    min_momentum: float | None = None


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


class _ToMinimum(ScheduleHook):
    """A policy that ends at `min_lr` or at `min_lr_ratio` of the initial value.

    The momentum's are `min_momentum` and `min_momentum_ratio`.
    """

    def __post_init__(self) -> None:
        name = f"min_{self.quantity}"
        self.minimum, self.ratio = getattr(self, name), getattr(self, f"{name}_ratio")
        exactly_one(name, self.minimum, self.ratio)
        super().__post_init__()

    def end(self, base: float) -> float:
        """Where a group that begins at `base` ends."""
        return float(self.minimum if self.ratio is None else base * self.ratio)


class _Cosine(_ToMinimum):
    """Half a cosine from the initial to the minimum value over the run.

    SGDR, https://arxiv.org/abs/1608.03983, equation 5.
    """

    def value(self, base: float, progress: int, total: int) -> float:
        return annealing_cos(base, self.end(base), progress / total)


class _Linear(_ToMinimum):
    """A straight line from the initial to the minimum value over the run."""

    def value(self, base: float, progress: int, total: int) -> float:
        return annealing_linear(base, self.end(base), progress / total)


@policy
class CosineAnnealingLrUpdaterHook(_Cosine, LrUpdaterHook):
    __doc__ = _Cosine.__doc__

    min_lr: float | None = None
    min_lr_ratio: float | None = None


@policy
class CosineAnnealingMomentumUpdaterHook(_Cosine, MomentumUpdaterHook):
    __doc__ = _Cosine.__doc__

    min_momentum: float | None = None
    min_momentum_ratio: float | None = None


@policy
class LinearAnnealingLrUpdaterHook(_Linear, LrUpdaterHook):
    __doc__ = _Linear.__doc__

    min_lr: float | None = None
    min_lr_ratio: float | None = None


@policy
class LinearAnnealingMomentumUpdaterHook(_Linear, MomentumUpdaterHook):
    __doc__ = _Linear.__doc__

    min_momentum: float | None = None
    min_momentum_ratio: float | None = None


@policy
class FlatCosineAnnealingLrUpdaterHook(_ToMinimum, LrUpdaterHook):
    """The initial rate for `start_percent` of the run, then half a cosine."""

    start_percent: float = 0.75
    min_lr: float | None = None
    min_lr_ratio: float | None = None

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
class CosineRestartLrUpdaterHook(_ToMinimum, LrUpdaterHook):
    """Half a cosine in each of `periods`, from `restart_weights[i]` of the height.

    SGDR, https://arxiv.org/abs/1608.03983, section 3.

    Raises:
        ConfigError: the lists differ in length, or a run is longer than `periods`.
    """

    periods: Sequence[int]
    restart_weights: Sequence[float] = (1,)
    min_lr: float | None = None
    min_lr_ratio: float | None = None

    def __post_init__(self) -> None:
        self.cumulative_periods = restart_bounds(self.periods, self.restart_weights)
        super().__post_init__()

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        unit = "epochs" if self.by_epoch else "iterations"
        _, total = self.progress(runner)
        covered = self.cumulative_periods[-1]
        if total is not None and total > covered:
            raise ConfigError.of(
                "periods",
                f"{list(self.periods)} cover {covered} {unit}, but the run has {total}",
            )

    def value(self, base: float, progress: int, total: int) -> float:
        bounds = self.cumulative_periods
        index = bisect_right(bounds, progress)
        start = bounds[index - 1] if index else 0
        factor = (progress - start) / (bounds[index] - start)
        weight = self.restart_weights[index]
        return annealing_cos(base, self.end(base), factor, weight)


@policy
class CosineAnnealingCooldownLrUpdaterHook(_ToMinimum, LrUpdaterHook):
    """Half a cosine, then `cool_down_ratio` of the minimum rate.

    The cosine ends `cool_down_time` epochs or iterations before the run does. The
    schedule MMClassification names CosineAnnealingCooldown.
    """

    min_lr: float | None = None
    min_lr_ratio: float | None = None
    cool_down_ratio: float = 0.1
    cool_down_time: int = 10

    def __post_init__(self) -> None:
        if self.cool_down_time < 0:
            raise ConfigError.of(
                "cool_down_time", f"must be 0 or more, got {self.cool_down_time!r}"
            )
        super().__post_init__()

    def value(self, base: float, progress: int, total: int) -> float:
        end, annealed = self.end(base), total - self.cool_down_time
        if progress > annealed:
            return end * self.cool_down_ratio
        return annealing_cos(base, end, progress / annealed if annealed else 1.0)
