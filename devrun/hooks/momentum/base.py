"""`MomentumUpdaterHook`: writes a schedule into the momentum of each group."""

from __future__ import annotations

from typing import Any

from devrun.errors import ConfigError
from devrun.hooks.base import HOOKS, Priority
from devrun.hooks.schedules.base import ScheduleHook, Values, optimizers_of, write
from devrun.run import Run

__all__ = ["MomentumUpdaterHook", "momentum_of", "set_momentum"]


@HOOKS.register_module()
class MomentumUpdaterHook(ScheduleHook):
    """Base of the momentum policies; a policy overrides `get_momentum`.

    What is scheduled is a group's `momentum`, or `betas[0]` where it has none.
    `base_momentum` holds the `initial_momentum` of each group, `regular_momentum` the
    values without warm-up, as lists or as dicts of lists for several optimizers.

    See `ScheduleHook` for the arguments. The warm-up divides by its factor: a
    momentum starts high where a learning rate starts low.
    """

    priority: Any = Priority.HIGH
    base_momentum: Values = ()
    regular_momentum: Values = ()

    def __init__(
        self,
        by_epoch: bool = True,
        warmup: str | None = None,
        warmup_iters: int = 0,
        warmup_ratio: float = 0.9,
        warmup_by_epoch: bool = False,
    ) -> None:
        super().__init__(by_epoch, warmup, warmup_iters, warmup_ratio, warmup_by_epoch)

    def get_momentum(self, runner: Run, base_momentum: Any) -> float:
        """The regular momentum of a group whose initial one is `base_momentum`."""
        raise NotImplementedError(f"{type(self).__name__} must define get_momentum")

    def get_regular_momentum(self, runner: Run) -> Values:
        """`get_momentum` of every group."""
        base = self.base_momentum
        if isinstance(base, dict):
            return {
                name: [self.get_momentum(runner, value) for value in values]
                for name, values in base.items()
            }
        return [self.get_momentum(runner, value) for value in base]

    def get_warmup_momentum(self, cur_iters: int) -> Values:
        """`regular_momentum` divided by the warm-up factor of `cur_iters`."""
        factor = self.warmup_factor(cur_iters)
        regular = self.regular_momentum
        if isinstance(regular, dict):
            return {
                name: [value / factor for value in values]
                for name, values in regular.items()
            }
        return [value / factor for value in regular]

    def _set_momentum(self, runner: Run, momentum_groups: Values) -> None:
        optimizer = runner.optimizer
        if isinstance(optimizer, dict):
            for name, one in optimizer.items():
                values = momentum_groups[name]
                for group, value in zip(one.param_groups, values, strict=True):
                    set_momentum(group, value)
            return
        for group, value in zip(optimizer.param_groups, momentum_groups, strict=True):
            set_momentum(group, value)

    def _remember_base(self, runner: Run) -> None:
        found = {}
        for name, optimizer in optimizers_of(runner).items():
            for group in optimizer.param_groups:
                group.setdefault("initial_momentum", momentum_of(group, optimizer))
            found[name] = [g["initial_momentum"] for g in optimizer.param_groups]
        several = isinstance(runner.optimizer, dict)
        self.base_momentum = found if several else next(iter(found.values()))

    def _refresh(self, runner: Run) -> Values:
        self.regular_momentum = self.get_regular_momentum(runner)
        return self.regular_momentum

    def _regular(self) -> Values:
        return self.regular_momentum

    def _warmed(self, cur_iters: int) -> Values:
        return self.get_warmup_momentum(cur_iters)

    def _write(self, runner: Run, values: Values) -> None:
        self._set_momentum(runner, values)


def momentum_of(group: dict[str, Any], optimizer: Any) -> float:
    """`momentum`, else `betas[0]`.

    Raises:
        ConfigError: the group has neither.
    """
    if "momentum" in group:
        return float(group["momentum"])
    if "betas" in group:
        return float(group["betas"][0])
    raise ConfigError(
        f"{type(optimizer).__name__} has neither momentum nor betas to schedule; "
        "remove momentum_config or use another optimizer"
    )


def set_momentum(group: dict[str, Any], value: float) -> None:
    """Set `momentum`, else `betas[0]`, if that changes it.

    Raises:
        ConfigError: a beta outside [0, 1), by which an optimizer would divide by zero.
    """
    if "momentum" in group:
        write(group, "momentum", value)
    elif group["betas"][0] != value:
        if not 0 <= value < 1:
            raise ConfigError(
                f"the momentum schedule gives betas[0] = {value:.4g}, which must be 0 "
                "or more and below 1; a warm-up divides by warmup_ratio: raise it"
            )
        group["betas"] = (value, *group["betas"][1:])
