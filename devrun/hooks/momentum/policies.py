"""Momentum policies, by the same formulas as the learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from devrun.errors import ConfigError
from devrun.hooks.base import HOOKS
from devrun.hooks.momentum.base import MomentumUpdaterHook, momentum_of, set_momentum
from devrun.hooks.schedules.base import Values, optimizers_of
from devrun.hooks.schedules.checks import (
    end_value,
    exactly_one,
    format_param,
    step_argument,
)
from devrun.hooks.schedules.cycles import CyclicSchedule, OneCycleSchedule
from devrun.optim import schedules
from devrun.run import Run

__all__ = [
    "CosineAnnealingMomentumUpdaterHook",
    "CyclicMomentumUpdaterHook",
    "LinearAnnealingMomentumUpdaterHook",
    "OneCycleMomentumUpdaterHook",
    "StepMomentumUpdaterHook",
]


@HOOKS.register_module()
class StepMomentumUpdaterHook(MomentumUpdaterHook):
    """Times `gamma` every `step`, or at each milestone when `step` is a list."""

    def __init__(
        self,
        step: int | Sequence[int],
        gamma: float = 0.5,
        min_momentum: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.step = step_argument(step)
        self.gamma = gamma
        self.min_momentum = min_momentum
        super().__init__(**kwargs)

    def get_momentum(self, runner: Run, base_momentum: float) -> float:
        progress, _ = self.progress(runner)
        return schedules.step_decay(
            base_momentum, progress, self.step, self.gamma, self.min_momentum
        )


class _ToMinimum(MomentumUpdaterHook):
    """A policy that ends at `min_momentum` or a ratio of the initial momentum."""

    def __init__(
        self,
        min_momentum: float | None = None,
        min_momentum_ratio: float | None = None,
        **kwargs: Any,
    ) -> None:
        exactly_one("min_momentum", min_momentum, min_momentum_ratio)
        self.min_momentum = min_momentum
        self.min_momentum_ratio = min_momentum_ratio
        super().__init__(**kwargs)


@HOOKS.register_module()
class CosineAnnealingMomentumUpdaterHook(_ToMinimum):
    """Half a cosine from the initial to the minimum momentum over the run."""

    def get_momentum(self, runner: Run, base_momentum: float) -> float:
        progress, total = self.progress(runner)
        end = end_value(base_momentum, self.min_momentum, self.min_momentum_ratio)
        return schedules.annealing_cos(base_momentum, end, progress / total)


@HOOKS.register_module()
class LinearAnnealingMomentumUpdaterHook(_ToMinimum):
    """A straight line from the initial to the minimum momentum over the run."""

    def get_momentum(self, runner: Run, base_momentum: float) -> float:
        progress, total = self.progress(runner)
        end = end_value(base_momentum, self.min_momentum, self.min_momentum_ratio)
        return schedules.annealing_linear(base_momentum, end, progress / total)


@HOOKS.register_module()
class CyclicMomentumUpdaterHook(CyclicSchedule, MomentumUpdaterHook):
    """Down and up with a cyclic learning rate; see `CyclicSchedule`."""

    def __init__(
        self,
        by_epoch: bool = False,
        target_ratio: Any = (0.85 / 0.95, 1),
        cyclic_times: int = 1,
        step_ratio_up: float = 0.4,
        anneal_strategy: str = "cos",
        gamma: float = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            by_epoch,
            target_ratio,
            cyclic_times,
            step_ratio_up,
            anneal_strategy,
            gamma,
            **kwargs,
        )

    def get_momentum(self, runner: Run, base_momentum: float) -> float:
        return self.value(runner, base_momentum)


@HOOKS.register_module()
class OneCycleMomentumUpdaterHook(OneCycleSchedule, MomentumUpdaterHook):
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

    def __init__(
        self,
        base_momentum: float | Sequence[float] | Mapping[str, Any] = 0.85,
        max_momentum: float | Sequence[float] | Mapping[str, Any] = 0.95,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        three_phase: bool = False,
        **kwargs: Any,
    ) -> None:
        for name, value in (
            ("base_momentum", base_momentum),
            ("max_momentum", max_momentum),
        ):
            if isinstance(value, bool) or not isinstance(
                value, (Real, list, tuple, Mapping)
            ):
                raise ConfigError(
                    f"{name} must be a number, list or dict, got {value!r}"
                )
        self._given_base = base_momentum
        self._given_max = max_momentum
        super().__init__(pct_start, anneal_strategy, three_phase, **kwargs)

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        self.plan(runner.max_iters or 0)

    def get_regular_momentum(self, runner: Run) -> Values:
        """`get_momentum` of every group, which is passed itself."""
        optimizer = runner.optimizer
        if isinstance(optimizer, dict):
            return {
                name: [self.get_momentum(runner, group) for group in one.param_groups]
                for name, one in optimizer.items()
            }
        return [self.get_momentum(runner, group) for group in optimizer.param_groups]

    def get_momentum(self, runner: Run, base_momentum: dict[str, Any]) -> float:
        high, low = base_momentum["max_momentum"], base_momentum["base_momentum"]
        return self.value_between(runner, (high, low, high))

    def _remember_base(self, runner: Run) -> None:
        for name, optimizer in optimizers_of(runner).items():
            lows = format_param(name, optimizer, self._given_base)
            highs = format_param(name, optimizer, self._given_max)
            for group, low, high in zip(
                optimizer.param_groups, lows, highs, strict=True
            ):
                momentum_of(group, optimizer)  # refuses an optimizer without one
                set_momentum(group, high)
                group["base_momentum"] = low
                group["max_momentum"] = high
