"""Learning-rate policies that fall along a given curve, under MMCV's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devrun.errors import ConfigError
from devrun.hooks.base import HOOKS
from devrun.hooks.lr.base import LrUpdaterHook
from devrun.hooks.schedules.checks import (
    end_value,
    exactly_one,
    fraction,
    restart_bounds,
    step_argument,
)
from devrun.optim import schedules
from devrun.run import Run

__all__ = [
    "CosineAnnealingCooldownLrUpdaterHook",
    "CosineAnnealingLrUpdaterHook",
    "CosineRestartLrUpdaterHook",
    "ExpLrUpdaterHook",
    "FixedLrUpdaterHook",
    "FlatCosineAnnealingLrUpdaterHook",
    "InvLrUpdaterHook",
    "LinearAnnealingLrUpdaterHook",
    "PolyLrUpdaterHook",
    "StepLrUpdaterHook",
]


@HOOKS.register_module()
class FixedLrUpdaterHook(LrUpdaterHook):
    """The initial rate throughout; for a warm-up, or to undo other changes."""

    follows_progress = False

    def get_lr(self, runner: Run, base_lr: float) -> float:
        return base_lr


@HOOKS.register_module()
class StepLrUpdaterHook(LrUpdaterHook):
    """Times `gamma` every `step`, or at each milestone when `step` is a list."""

    def __init__(
        self,
        step: int | Sequence[int],
        gamma: float = 0.1,
        min_lr: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.step = step_argument(step)
        self.gamma = gamma
        self.min_lr = min_lr
        super().__init__(**kwargs)

    def get_lr(self, runner: Run, base_lr: float) -> float:
        progress, _ = self.progress(runner)
        return schedules.step_decay(
            base_lr, progress, self.step, self.gamma, self.min_lr
        )


@HOOKS.register_module()
class ExpLrUpdaterHook(LrUpdaterHook):
    """Times `gamma` each epoch or iteration."""

    def __init__(self, gamma: float, **kwargs: Any) -> None:
        self.gamma = gamma
        super().__init__(**kwargs)

    def get_lr(self, runner: Run, base_lr: float) -> float:
        progress, _ = self.progress(runner)
        return schedules.exponential(base_lr, progress, self.gamma)


@HOOKS.register_module()
class PolyLrUpdaterHook(LrUpdaterHook):
    """Down to `min_lr` as a power of the part of the run that is left."""

    def __init__(self, power: float = 1.0, min_lr: float = 0.0, **kwargs: Any) -> None:
        self.power = power
        self.min_lr = min_lr
        super().__init__(**kwargs)

    def get_lr(self, runner: Run, base_lr: float) -> float:
        progress, total = self.progress(runner)
        return schedules.polynomial(base_lr, progress, total, self.power, self.min_lr)


@HOOKS.register_module()
class InvLrUpdaterHook(LrUpdaterHook):
    """`base_lr * (1 + gamma * progress) ** -power`."""

    def __init__(self, gamma: float, power: float = 1.0, **kwargs: Any) -> None:
        self.gamma = gamma
        self.power = power
        super().__init__(**kwargs)

    def get_lr(self, runner: Run, base_lr: float) -> float:
        progress, _ = self.progress(runner)
        return schedules.inverse(base_lr, progress, self.gamma, self.power)


class _ToMinimum(LrUpdaterHook):
    """A policy that ends at `min_lr` or at `min_lr_ratio` of the initial rate."""

    def __init__(
        self,
        min_lr: float | None = None,
        min_lr_ratio: float | None = None,
        **kwargs: Any,
    ) -> None:
        exactly_one("min_lr", min_lr, min_lr_ratio)
        self.min_lr = min_lr
        self.min_lr_ratio = min_lr_ratio
        super().__init__(**kwargs)


@HOOKS.register_module()
class CosineAnnealingLrUpdaterHook(_ToMinimum):
    """Half a cosine from the initial to the minimum rate over the run."""

    def get_lr(self, runner: Run, base_lr: float) -> float:
        progress, total = self.progress(runner)
        end = end_value(base_lr, self.min_lr, self.min_lr_ratio)
        return schedules.annealing_cos(base_lr, end, progress / total)


@HOOKS.register_module()
class LinearAnnealingLrUpdaterHook(_ToMinimum):
    """A straight line from the initial to the minimum rate over the run."""

    def get_lr(self, runner: Run, base_lr: float) -> float:
        progress, total = self.progress(runner)
        end = end_value(base_lr, self.min_lr, self.min_lr_ratio)
        return schedules.annealing_linear(base_lr, end, progress / total)


@HOOKS.register_module()
class FlatCosineAnnealingLrUpdaterHook(_ToMinimum):
    """The initial rate for `start_percent` of the run, then half a cosine."""

    def __init__(
        self,
        start_percent: float = 0.75,
        min_lr: float | None = None,
        min_lr_ratio: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.start_percent = fraction("start_percent", start_percent)
        super().__init__(min_lr, min_lr_ratio, **kwargs)

    def get_lr(self, runner: Run, base_lr: float) -> float:
        progress, total = self.progress(runner)
        end = end_value(base_lr, self.min_lr, self.min_lr_ratio)
        return schedules.flat_cosine(base_lr, end, progress, total, self.start_percent)


@HOOKS.register_module()
class CosineRestartLrUpdaterHook(_ToMinimum):
    """Half a cosine in each of `periods`, from `restart_weights[i]` of the height.

    Raises:
        ConfigError: the lists differ in length, or a run is longer than `periods`.
    """

    def __init__(
        self,
        periods: Sequence[int],
        restart_weights: Sequence[float] = (1,),
        min_lr: float | None = None,
        min_lr_ratio: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.cumulative_periods = restart_bounds(periods, restart_weights)
        self.periods = list(periods)
        self.restart_weights = list(restart_weights)
        super().__init__(min_lr, min_lr_ratio, **kwargs)

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        unit, total = (
            ("epochs", runner.max_epochs)
            if self.by_epoch
            else ("iterations", runner.max_iters)
        )
        if total is not None and total > self.cumulative_periods[-1]:
            raise ConfigError(
                f"periods {self.periods} cover {self.cumulative_periods[-1]} {unit}, "
                f"but the run has {total}"
            )

    def get_lr(self, runner: Run, base_lr: float) -> float:
        progress, _ = self.progress(runner)
        end = end_value(base_lr, self.min_lr, self.min_lr_ratio)
        return schedules.cosine_restart(
            base_lr, end, progress, self.cumulative_periods, self.restart_weights
        )


@HOOKS.register_module()
class CosineAnnealingCooldownLrUpdaterHook(_ToMinimum):
    """Half a cosine, then `cool_down_ratio` of the minimum rate.

    The cosine ends `cool_down_time` epochs or iterations before the run does.
    """

    def __init__(
        self,
        min_lr: float | None = None,
        min_lr_ratio: float | None = None,
        cool_down_ratio: float = 0.1,
        cool_down_time: int = 10,
        **kwargs: Any,
    ) -> None:
        self.cool_down_ratio = cool_down_ratio
        if cool_down_time < 0:
            raise ConfigError(
                f"cool_down_time must be 0 or more, got {cool_down_time!r}"
            )
        self.cool_down_time = cool_down_time
        super().__init__(min_lr, min_lr_ratio, **kwargs)

    def get_lr(self, runner: Run, base_lr: float) -> float:
        progress, total = self.progress(runner)
        end = end_value(base_lr, self.min_lr, self.min_lr_ratio)
        return schedules.cosine_cooldown(
            base_lr, end, progress, total, self.cool_down_time, self.cool_down_ratio
        )
