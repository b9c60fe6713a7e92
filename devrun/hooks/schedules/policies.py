"""MMCV's policies: a field is an argument, and `value` is the formula."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Union

from devrun.config.numbers import is_number, whole_number
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest
from devrun.hooks.schedules.hook import (
    LrUpdaterHook,
    MomentumUpdaterHook,
    ScheduleHook,
    momentum_of,
    policy,
    require,
    set_momentum,
)
from devrun.run import Run

PerGroup = Union[float, "Sequence[float]", "Mapping[str, Any]"]
"""One number, a list with one for each group, or a dict of these by optimizer name."""


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
    fine = type(value) is float and 0 <= value <= 1
    require(fine, name, "a float from 0 to 1", value)


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
        self.end = minimum("min_momentum", self.min_momentum, self.min_momentum_ratio)
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
        lengths = (whole_number("each of periods", p, key="periods") for p in periods)
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


class _Cycles(ScheduleHook):
    """Counted in iterations, up and down along the curve of `anneal_strategy`."""

    anneal_strategy: str

    def __post_init__(self) -> None:
        require(not self.by_epoch, "by_epoch", "False for this policy", self.by_epoch)
        curve = self.anneal_strategy
        require(curve in ANNEALINGS, "anneal_strategy", "'cos' or 'linear'", curve)
        self.anneal_func = ANNEALINGS[self.anneal_strategy]
        super().__post_init__()


@dataclass(eq=False)
class _Cyclic(_Cycles):
    """`cyclic_times` times over the run: up from the base value, then down.

    Cyclical rates, https://arxiv.org/abs/1506.01186, section 3.

    Args:
        by_epoch: must be False.
        target_ratio: (peak, end) as multiples of the base; `r` is (r, r / 1e5).
        cyclic_times: number of cycles in the run.
        step_ratio_up: part of a cycle spent going up; 0 or more and below 1.
        anneal_strategy: `cos` or `linear`.
        gamma: the height shrinks by this factor each cycle; above 0, at most 1.
    """

    by_epoch: bool = False
    target_ratio: Any = (10, 1e-4)
    cyclic_times: int = 1
    step_ratio_up: float = 0.4
    anneal_strategy: str = "cos"
    gamma: float = 1

    def __post_init__(self) -> None:
        up, gamma, given = self.step_ratio_up, self.gamma, self.target_ratio
        require(0 <= up < 1, "step_ratio_up", "0 or more and below 1", up)
        require(0 < gamma <= 1, "gamma", "above 0 and at most 1", gamma)
        ratios = list(given) if isinstance(given, (list, tuple)) else [given]
        fine = all(map(is_number, ratios)) and len(ratios) in (1, 2)
        require(fine, "target_ratio", "a number or a pair of numbers", given)
        self.target_ratio = (ratios[0], ratios[1] if ratios[1:] else ratios[0] / 1e5)
        whole_number("cyclic_times", self.cyclic_times)
        super().__post_init__()

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        most = runner.max_iters or 0
        rule = f"at most the {most} iterations of the run"
        require(self.cyclic_times <= most, "cyclic_times", rule, self.cyclic_times)

    def value(self, base: float, progress: int, total: int) -> float:
        period = total // self.cyclic_times
        up = int(self.step_ratio_up * period)
        cycle, position = divmod(progress, period)
        peak = base * (1.0 + self.gamma**cycle * (self.target_ratio[0] - 1.0))
        if position < up:
            return self.anneal_func(base, peak, position / up)
        end = base * self.target_ratio[1]
        return self.anneal_func(peak, end, (position - up) / (period - up))


@policy
class CyclicLrUpdaterHook(_Cyclic, LrUpdaterHook):
    __doc__ = _Cyclic.__doc__


@policy
class CyclicMomentumUpdaterHook(_Cyclic, MomentumUpdaterHook):
    __doc__ = _Cyclic.__doc__

    target_ratio: Any = (0.85 / 0.95, 1)


class _OneCycle(_Cycles):
    """One cycle over the run, in two phases or in three."""

    pct_start: float
    three_phase: bool

    def __post_init__(self) -> None:
        fraction("pct_start", self.pct_start)
        super().__post_init__()

    def between(
        self, initial: float, peak: float, final: float, progress: int, total: int
    ) -> float:
        """The value at `progress` between three levels; `final` from the last step on.

        https://arxiv.org/abs/1708.07120; two phases as in fastai and torch's
        OneCycleLR, or the three of the paper.
        """
        first = float(self.pct_start * total) - 1
        phases = [(first, initial, peak), (total - 1, peak, final)]
        if self.three_phase:
            second = float(2 * self.pct_start * total) - 2
            phases[1:] = [(second, peak, initial), (total - 1, initial, final)]
        start = 0.0
        for end, before, after in phases:
            if progress <= end:
                length = end - start
                factor = (progress - start) / length if length else 1.0
                return self.anneal_func(before, after, factor)
            start = end
        return final


@policy
class OneCycleLrUpdaterHook(_OneCycle, LrUpdaterHook):
    """From `max_lr / div_factor` up to `max_lr`, then down, once over the run.

    Args:
        max_lr: the peak; a list has one for each group, a dict one for each optimizer.
        total_steps: length of the cycle, at least that of the run; None for the run's.
        pct_start: part of the cycle until the peak.
        anneal_strategy: `cos` or `linear`.
        div_factor: the initial rate is `max_lr` divided by this.
        final_div_factor: the last rate is the initial one divided by this.
        three_phase: go down to the initial rate before going to the last one.
        kwargs: see `ScheduleHook`; `by_epoch` must be False.
    """

    max_lr: PerGroup
    total_steps: int | None = None
    pct_start: float = 0.3
    anneal_strategy: str = "cos"
    div_factor: float = 25
    final_div_factor: float = 1e4
    three_phase: bool = False
    by_epoch: bool = False

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        least, given = runner.max_iters or 0, self.total_steps
        rule = f"at least the {least} iterations of the run"
        fine = given is None or (is_number(given) and given >= max(least, 1))
        require(fine, "total_steps", rule, given)

    def value(self, base: float, progress: int, total: int) -> float:
        peak, final = base * self.div_factor, base / self.final_div_factor
        return self.between(base, peak, final, progress, self.total_steps or total)

    def _initial(self, name: str, optimizer: Any) -> list[float]:
        peaks = format_param(name, optimizer, self.max_lr)
        rates = [peak / self.div_factor for peak in peaks]
        for group, lr in zip(optimizer.param_groups, rates):
            group.setdefault("initial_lr", lr)
        return rates


@policy
class OneCycleMomentumUpdaterHook(_OneCycle, MomentumUpdaterHook):
    """From `max_momentum` down to `base_momentum` and back, against a 1cycle rate.

    Args:
        base_momentum: the low; a list has one for each group, a dict one for each
            optimizer.
        max_momentum: the high, likewise.
        pct_start: part of the run until the low.
        anneal_strategy: `cos` or `linear`.
        three_phase: be back at the high for the last phase of the rate.
    """

    base_momentum: PerGroup = 0.85
    max_momentum: PerGroup = 0.95
    pct_start: float = 0.3
    anneal_strategy: str = "cos"
    three_phase: bool = False
    by_epoch: bool = False

    def value(self, base: Any, progress: int, total: int) -> float:
        low, high = base
        return self.between(high, low, high, progress, total)

    def _initial(self, name: str, optimizer: Any) -> list[Any]:
        """The low and the high of each group, which begins with the high."""
        lows = format_param(name, optimizer, self.base_momentum)
        highs = format_param(name, optimizer, self.max_momentum)
        for group, high in zip(optimizer.param_groups, highs):
            momentum_of(group, optimizer)  # refuses an optimizer without one
            set_momentum(group, high)
        return list(zip(lows, highs))


def format_param(name: str, optimizer: Any, param: Any) -> list[Any]:
    """`param` as one value for each group of the optimizer called `name`.

    Raises:
        ConfigError: (a ValueError) a list whose length is not the number of groups.
        UnknownNameError: (a KeyError) a dict without `name`.
    """
    if isinstance(param, Mapping):
        if name not in param:
            hint = nearest(name, param)
            raise UnknownNameError(f"no value for the optimizer {name!r}; {hint}")
        param = param[name]
    groups = optimizer.param_groups
    if not isinstance(param, (list, tuple)):
        return [float(param)] * len(groups)
    if len(param) != len(groups):
        raise ConfigError(
            f"{len(groups)} values are needed, one for each parameter group of "
            f"{type(optimizer).__name__}, got {len(param)}"
        )
    return list(map(float, param))
