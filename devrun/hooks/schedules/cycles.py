"""Policies that rise before they fall: cyclic and 1cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from devrun.config.numbers import is_number, whole_number
from devrun.errors import ConfigError, UnknownNameError, nearest
from devrun.hooks.schedules.hook import (
    LrUpdaterHook,
    MomentumUpdaterHook,
    ScheduleHook,
    momentum_of,
    policy,
    require,
    set_momentum,
)
from devrun.hooks.schedules.policies import ANNEALINGS, fraction
from devrun.run import Run

PerGroup: TypeAlias = float | Sequence[float] | Mapping[str, Any]
"""One number, a list with one for each group, or a dict of these by optimizer name."""


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
        kwargs: see `ScheduleHook`.
    """

    by_epoch: bool = field(default=False, kw_only=False)
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
    by_epoch: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _numbers("max_lr", self.max_lr)
        if self.total_steps is not None:
            whole_number("total_steps", self.total_steps)
        super().__post_init__()

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        least, given = runner.max_iters or 0, self.total_steps
        rule = f"at least the {least} iterations of the run"
        require(not given or given >= least, "total_steps", rule, given)

    def value(self, base: float, progress: int, total: int) -> float:
        peak, final = base * self.div_factor, base / self.final_div_factor
        return self.between(base, peak, final, progress, self.total_steps or total)

    def _initial(self, name: str, optimizer: Any) -> list[float]:
        peaks = format_param(name, optimizer, self.max_lr)
        rates = [peak / self.div_factor for peak in peaks]
        for group, lr in zip(optimizer.param_groups, rates, strict=True):
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
        kwargs: see `ScheduleHook`; `by_epoch` must be False.
    """

    base_momentum: PerGroup = 0.85
    max_momentum: PerGroup = 0.95
    pct_start: float = 0.3
    anneal_strategy: str = "cos"
    three_phase: bool = False
    by_epoch: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _numbers("base_momentum", self.base_momentum)
        _numbers("max_momentum", self.max_momentum)
        super().__post_init__()

    def value(self, base: Any, progress: int, total: int) -> float:
        low, high = base
        return self.between(high, low, high, progress, total)

    def _initial(self, name: str, optimizer: Any) -> list[Any]:
        """The low and the high of each group, which begins with the high."""
        lows = format_param(name, optimizer, self.base_momentum)
        highs = format_param(name, optimizer, self.max_momentum)
        for group, high in zip(optimizer.param_groups, highs, strict=True):
            momentum_of(group, optimizer)  # refuses an optimizer without one
            set_momentum(group, high)
        return list(zip(lows, highs, strict=True))


def format_param(name: str, optimizer: Any, param: PerGroup) -> list[Any]:
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
        return [param] * len(groups)
    if len(param) != len(groups):
        raise ConfigError(
            f"{len(groups)} values are needed, one for each parameter group of "
            f"{type(optimizer).__name__}, got {len(param)}"
        )
    return list(param)


def _numbers(name: str, value: Any) -> None:
    fine = is_number(value) or isinstance(value, (list, tuple, Mapping))
    require(fine, name, "a number, list or dict", value)
