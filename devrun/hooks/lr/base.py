"""`LrUpdaterHook`: writes a schedule into the learning rate of each group."""

from __future__ import annotations

from typing import Any

from devrun.hooks.base import HOOKS, Priority
from devrun.hooks.schedules.base import ScheduleHook, Values, optimizers_of, write
from devrun.run import Run

__all__ = ["LrUpdaterHook"]


@HOOKS.register_module()
class LrUpdaterHook(ScheduleHook):
    """Base of the learning-rate policies; a policy overrides `get_lr`.

    `base_lr` holds the `initial_lr` of each group: its `lr` when the first run began,
    which the optimizer's state carries through a resume. `regular_lr` holds the rates
    without warm-up. Both are lists, or dicts of lists for several optimizers.

    See `ScheduleHook` for the arguments.
    """

    priority: Any = Priority.VERY_HIGH
    base_lr: Values = ()
    regular_lr: Values = ()

    def get_lr(self, runner: Run, base_lr: float) -> float:
        """The regular rate of a group whose initial rate is `base_lr`."""
        raise NotImplementedError(f"{type(self).__name__} must define get_lr")

    def get_regular_lr(self, runner: Run) -> Values:
        """`get_lr` of every group."""
        base = self.base_lr
        if isinstance(base, dict):
            return {
                name: [self.get_lr(runner, lr) for lr in rates]
                for name, rates in base.items()
            }
        return [self.get_lr(runner, lr) for lr in base]

    def get_warmup_lr(self, cur_iters: int) -> Values:
        """`regular_lr` times the warm-up factor of iteration `cur_iters`."""
        factor = self.warmup_factor(cur_iters)
        regular = self.regular_lr
        if isinstance(regular, dict):
            return {
                name: [lr * factor for lr in rates] for name, rates in regular.items()
            }
        return [lr * factor for lr in regular]

    def _set_lr(self, runner: Run, lr_groups: Values) -> None:
        optimizer = runner.optimizer
        if isinstance(optimizer, dict):
            for name, one in optimizer.items():
                for group, lr in zip(one.param_groups, lr_groups[name], strict=True):
                    write(group, "lr", lr)
            return
        for group, lr in zip(optimizer.param_groups, lr_groups, strict=True):
            write(group, "lr", lr)

    def _remember_base(self, runner: Run) -> None:
        rates = {}
        for name, optimizer in optimizers_of(runner).items():
            for group in optimizer.param_groups:
                # float(): a rate kept in a tensor would change together with it
                group.setdefault("initial_lr", float(group["lr"]))
            rates[name] = [float(g["initial_lr"]) for g in optimizer.param_groups]
        several = isinstance(runner.optimizer, dict)
        self.base_lr = rates if several else next(iter(rates.values()))

    def _refresh(self, runner: Run) -> Values:
        self.regular_lr = self.get_regular_lr(runner)
        return self.regular_lr

    def _regular(self) -> Values:
        return self.regular_lr

    def _warmed(self, cur_iters: int) -> Values:
        return self.get_warmup_lr(cur_iters)

    def _write(self, runner: Run, values: Values) -> None:
        self._set_lr(runner, values)
