"""Cyclic and 1cycle schedules, for a learning rate or a momentum alike."""

from __future__ import annotations

from typing import Any

from devrun.errors import ConfigError
from devrun.hooks.schedules.base import ScheduleHook
from devrun.hooks.schedules.checks import (
    annealing,
    cyclic_ratios,
    fraction,
    iterations_only,
    positive_int,
)
from devrun.optim.schedules import Phase, cyclic, one_cycle, one_cycle_phases
from devrun.run import Run

__all__ = ["CyclicSchedule", "OneCycleSchedule"]


class CyclicSchedule(ScheduleHook):
    """`cyclic_times` times over the run: up from the base value, then down.

    Args:
        by_epoch: must be False.
        target_ratio: (peak, end) as multiples of the base; `r` is (r, r / 1e5).
        cyclic_times: number of cycles in the run.
        step_ratio_up: part of a cycle spent going up; 0 or more and below 1.
        anneal_strategy: `cos` or `linear`.
        gamma: the height shrinks by this factor each cycle; above 0, at most 1.
        kwargs: see `ScheduleHook`.
    """

    def __init__(
        self,
        by_epoch: bool = False,
        target_ratio: Any = (10, 1e-4),
        cyclic_times: int = 1,
        step_ratio_up: float = 0.4,
        anneal_strategy: str = "cos",
        gamma: float = 1,
        **kwargs: Any,
    ) -> None:
        iterations_only(by_epoch)
        if not 0 <= step_ratio_up < 1.0:
            raise ConfigError(
                f"step_ratio_up must be 0 or more and below 1, got {step_ratio_up!r}"
            )
        if not 0 < gamma <= 1:
            raise ConfigError(f"gamma must be above 0 and at most 1, got {gamma!r}")
        self.target_ratio = cyclic_ratios(target_ratio)
        self.cyclic_times = positive_int("cyclic_times", cyclic_times)
        self.step_ratio_up = step_ratio_up
        self.gamma = gamma
        self.anneal_func = annealing(anneal_strategy)
        self.max_iter_per_phase = 0
        self.iter_up_phase = 0
        super().__init__(by_epoch=False, **kwargs)

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        self.max_iter_per_phase = (runner.max_iters or 0) // self.cyclic_times
        if self.max_iter_per_phase < 1:
            raise ConfigError(
                f"cyclic_times is {self.cyclic_times}, more than the "
                f"{runner.max_iters} iterations of the run"
            )
        self.iter_up_phase = int(self.step_ratio_up * self.max_iter_per_phase)

    def value(self, runner: Run, base: float) -> float:
        """The scheduled value of a group whose initial value is `base`."""
        return cyclic(
            base,
            runner.iter,
            self.max_iter_per_phase,
            self.iter_up_phase,
            self.target_ratio,
            self.gamma,
            self.anneal_func,
        )


class OneCycleSchedule(ScheduleHook):
    """One cycle over the run.

    Args:
        pct_start: part of the run until the peak.
        anneal_strategy: `cos` or `linear`.
        three_phase: return to the start before going to the end.
        kwargs: see `ScheduleHook`; `by_epoch` must be False.
    """

    def __init__(
        self,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        three_phase: bool = False,
        **kwargs: Any,
    ) -> None:
        iterations_only(kwargs.setdefault("by_epoch", False))
        self.pct_start = fraction("pct_start", pct_start)
        self.anneal_func = annealing(anneal_strategy)
        self.three_phase = three_phase
        self.phases: tuple[Phase, ...] = ()
        super().__init__(**kwargs)

    def plan(self, total_steps: int) -> None:
        """Lay the phases out over `total_steps`."""
        self.phases = one_cycle_phases(total_steps, self.pct_start, self.three_phase)

    def value_between(self, runner: Run, levels: tuple[float, float, float]) -> float:
        """The value now, between the (initial, peak, final) levels."""
        return one_cycle(levels, runner.iter, self.phases, self.anneal_func)
