"""`ScheduleHook`: when a scheduled value is worked out, warmed up and written.

What it is written to (learning rate, momentum) is a subclass; which value, a policy.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from devrun.config.numbers import check_finite
from devrun.errors import ConfigError, nearest
from devrun.hooks.base import Hook
from devrun.hooks.schedules.checks import positive_int
from devrun.optim.schedules import WARMUPS, warmup_factor
from devrun.run import Run

__all__ = ["Values", "ScheduleHook", "optimizers_of", "write"]

Values: TypeAlias = Any
"""One number for each parameter group, or a dict of such lists by optimizer name."""


class ScheduleHook(Hook):
    """Base of the learning-rate and momentum hooks.

    Args:
        by_epoch: the schedule follows epochs; else iterations.
        warmup: None, `constant`, `linear` or `exp`.
        warmup_iters: how many iterations it lasts, or epochs with `warmup_by_epoch`.
        warmup_ratio: where it starts, above 0 and at most 1.
        warmup_by_epoch: count the warm-up in epochs of the data loader.

    Raises:
        ConfigError: an argument is out of range; the message says which.
    """

    follows_progress: ClassVar[bool] = True
    """False for a policy whose regular value never changes."""

    def __init__(
        self,
        by_epoch: bool = True,
        warmup: str | None = None,
        warmup_iters: int = 0,
        warmup_ratio: float = 0.1,
        warmup_by_epoch: bool = False,
    ) -> None:
        check_finite(vars(self))  # what a policy has kept before it called this
        check_finite({"warmup_ratio": warmup_ratio, "warmup_iters": warmup_iters})
        if warmup is not None:
            if warmup not in WARMUPS:
                hint = nearest(str(warmup), WARMUPS)
                raise ConfigError(f"no warmup named {warmup!r}; {hint}")
            positive_int("warmup_iters", warmup_iters)
            if not 0 < warmup_ratio <= 1.0:
                raise ConfigError(
                    f"warmup_ratio must be above 0 and at most 1, got {warmup_ratio!r}"
                )
        self.by_epoch = by_epoch
        self.warmup = warmup
        self.warmup_iters: int | None = None if warmup_by_epoch else warmup_iters
        self.warmup_epochs: int | None = warmup_iters if warmup_by_epoch else None
        self.warmup_ratio = warmup_ratio
        self.warmup_by_epoch = warmup_by_epoch

    def progress(self, runner: Run) -> tuple[int, int]:
        """Completed and total epochs or iterations, whichever the policy follows."""
        if self.by_epoch:
            return runner.epoch, runner.max_epochs  # type: ignore[return-value]
        return runner.iter, runner.max_iters  # type: ignore[return-value]

    def warmup_factor(self, cur_iters: int) -> float:
        """The factor of the warm-up in iteration `cur_iters`."""
        if self.warmup is None or not self.warmup_iters:
            return 1.0
        return warmup_factor(
            self.warmup, cur_iters, self.warmup_iters, self.warmup_ratio
        )

    def before_run(self, runner: Run) -> None:
        # Where there are no epochs to count, nothing would ever set the value.
        if (
            self.by_epoch
            and self.follows_progress
            and runner.max_epochs is None
            and self._inherits("before_train_epoch")
            and self._inherits("before_train_iter")
        ):
            raise ConfigError(
                f"{type(self).__name__} has by_epoch=True, but this run is counted in "
                "iterations; give by_epoch=False"
            )
        self._remember_base(runner)

    def before_train_epoch(self, runner: Run) -> None:
        self._resolve_warmup(runner)
        if self.by_epoch:
            self._write(runner, self._refresh(runner))

    def before_train_iter(self, runner: Run) -> None:
        if not self.by_epoch:
            values = self._refresh(runner)
            if self.warmup is not None and runner.iter < self._resolve_warmup(runner):
                values = self._warmed(runner.iter)
            self._write(runner, values)
        elif self.warmup is not None:
            last = self._resolve_warmup(runner)
            if runner.iter > last:
                return
            regular = self._regular() or self._refresh(runner)
            warm = runner.iter < last
            self._write(runner, self._warmed(runner.iter) if warm else regular)

    def get_triggered_stages(self) -> list[str]:
        """As in `Hook`, less the stage in which this schedule has nothing to do."""
        idle = set()
        if self.by_epoch and self.warmup is None:
            idle.add("before_train_iter")
        if not self.by_epoch and not self.warmup_by_epoch:
            idle.add("before_train_epoch")
        idle = {stage for stage in idle if self._inherits(stage)}
        return [stage for stage in super().get_triggered_stages() if stage not in idle]

    def _inherits(self, stage: str) -> bool:
        method = getattr(self, stage)
        return getattr(method, "__func__", None) is getattr(ScheduleHook, stage)

    def _resolve_warmup(self, runner: Run) -> int:
        """Iterations of the warm-up, once the length of an epoch is known."""
        if self.warmup_iters is None:
            self.warmup_iters = (self.warmup_epochs or 0) * len(runner.data_loader)
        return self.warmup_iters

    def _remember_base(self, runner: Run) -> None:
        """Take the initial value of each group."""
        raise NotImplementedError

    def _refresh(self, runner: Run) -> Values:
        """Work out the regular values, keep and return them."""
        raise NotImplementedError

    def _regular(self) -> Values:
        """The regular values kept last."""
        raise NotImplementedError

    def _warmed(self, cur_iters: int) -> Values:
        """The regular values with the warm-up applied."""
        raise NotImplementedError

    def _write(self, runner: Run, values: Values) -> None:
        """Put the values into the parameter groups."""
        raise NotImplementedError


def write(group: dict[str, Any], key: str, value: float) -> None:
    """Set `group[key]` if that changes it.

    A tensor (an optimizer with `capturable`) is filled in place: captured and compiled
    steps hold on to it, and reading it would make the host wait.
    """
    current = group[key]
    if type(current) is float:  # nearly always; an isinstance costs twice as much
        if current != value:
            group[key] = value
    elif isinstance(current, Tensor):
        current.fill_(value)
    elif current != value:
        group[key] = value


def optimizers_of(runner: Run) -> dict[str, Any]:
    """The optimizers of a run by name; a single one under its class name."""
    optimizer = runner.optimizer
    if isinstance(optimizer, dict):
        return optimizer
    if optimizer is None:
        raise ConfigError("a schedule needs an optimizer; this runner has none")
    return {type(optimizer).__name__: optimizer}
