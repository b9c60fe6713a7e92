"""Learning-rate policies that rise before they fall: cyclic and 1cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from devrun.errors import ConfigError
from devrun.hooks.base import HOOKS
from devrun.hooks.lr.base import LrUpdaterHook
from devrun.hooks.schedules.base import optimizers_of
from devrun.hooks.schedules.checks import format_param, positive_int
from devrun.hooks.schedules.cycles import CyclicSchedule, OneCycleSchedule
from devrun.run import Run

__all__ = ["CyclicLrUpdaterHook", "OneCycleLrUpdaterHook"]


@HOOKS.register_module()
class CyclicLrUpdaterHook(CyclicSchedule, LrUpdaterHook):
    """Up and down `cyclic_times` times; see `CyclicSchedule` for the arguments."""

    def get_lr(self, runner: Run, base_lr: float) -> float:
        return self.value(runner, base_lr)


@HOOKS.register_module()
class OneCycleLrUpdaterHook(OneCycleSchedule, LrUpdaterHook):
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

    def __init__(
        self,
        max_lr: float | Sequence[float] | Mapping[str, Any],
        total_steps: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        **kwargs: Any,
    ) -> None:
        if isinstance(max_lr, bool) or not isinstance(
            max_lr, (Real, list, tuple, Mapping)
        ):
            raise ConfigError(f"max_lr must be a number, list or dict, got {max_lr!r}")
        if total_steps is not None:
            positive_int("total_steps", total_steps)
        self.max_lr = max_lr
        self.total_steps = total_steps
        self.div_factor = div_factor
        self.final_div_factor = final_div_factor
        super().__init__(pct_start, anneal_strategy, three_phase, **kwargs)

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        run_steps = runner.max_iters or 0
        total = self.total_steps or run_steps
        if total < run_steps:
            raise ConfigError(
                f"total_steps is {total}, but the run has {run_steps} iterations; "
                "give at least that many"
            )
        self.plan(total)

    def get_lr(self, runner: Run, base_lr: float) -> float:
        levels = (base_lr, base_lr * self.div_factor, base_lr / self.final_div_factor)
        return self.value_between(runner, levels)

    def _remember_base(self, runner: Run) -> None:
        rates = {}
        for name, optimizer in optimizers_of(runner).items():
            peaks = format_param(name, optimizer, self.max_lr)
            rates[name] = [peak / self.div_factor for peak in peaks]
            for group, lr in zip(optimizer.param_groups, rates[name], strict=True):
                group.setdefault("initial_lr", lr)
        several = isinstance(runner.optimizer, dict)
        self.base_lr = rates if several else next(iter(rates.values()))
