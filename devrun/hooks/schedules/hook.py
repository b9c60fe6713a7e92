"""`ScheduleHook`: when a scheduled value is worked out, warmed up and written.

`LrUpdaterHook` and `MomentumUpdaterHook` say what is scheduled, by MMCV's names, which
users override; a policy says which value it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from torch import Tensor
from typing_extensions import dataclass_transform

from devrun.config.numbers import check_finite, whole_number
from devrun.errors import ConfigError, nearest
from devrun.hooks.base import Hook, Priority
from devrun.registry import HOOKS
from devrun.run import Run

Values = Sequence[Any]
"""One number for each parameter group, of all optimizers in turn."""
Kind = TypeVar("Kind", bound=type)
_COMMON = ("by_epoch", "warmup", "warmup_iters", "warmup_ratio", "warmup_by_epoch")
WARMUPS: dict[str, Callable[[float, float], float]] = {
    "constant": lambda left, ratio: ratio,
    "linear": lambda left, ratio: 1.0 - left * (1.0 - ratio),
    "exp": lambda left, ratio: ratio**left,
}
"""From `left`, the part of the warm-up that is left, and its ratio to a factor.

https://arxiv.org/abs/1706.02677, section 2.2.
"""


class ScheduleHook(Hook):
    """Base of the learning-rate and momentum hooks.

    A policy is a dataclass whose fields are its arguments and whose `value` is its
    formula. A run that is resumed needs no state of it to go on exactly.

    Args:
        by_epoch: the schedule follows epochs; else iterations.
        warmup: None, `constant`, `linear` or `exp`.
        warmup_iters: how many iterations it lasts, or epochs with `warmup_by_epoch`.
        warmup_ratio: where it starts, above 0 and at most 1; None for `default_ratio`.
        warmup_by_epoch: count the warm-up in epochs of the data loader.

    Raises:
        ConfigError: an argument is out of range; the message says which.
    """

    follows_progress: ClassVar[bool] = True
    """False for a policy whose regular value never changes."""
    default_ratio: ClassVar[float] = 0.1
    base: Values = ()
    """What each group began with; set by `before_run`."""
    regular: Values = ()
    """The values without a warm-up."""
    by_epoch: bool = True
    warmup: str | None = None
    warmup_iters: int | None = 0
    warmup_ratio: Any = None
    warmup_by_epoch: bool = False

    def __init__(
        self,
        by_epoch: bool = True,
        warmup: str | None = None,
        warmup_iters: int = 0,
        warmup_ratio: Any = None,
        warmup_by_epoch: bool = False,
    ) -> None:
        self.by_epoch = by_epoch
        self.warmup, self.warmup_iters = warmup, warmup_iters
        self.warmup_ratio, self.warmup_by_epoch = warmup_ratio, warmup_by_epoch
        self.__post_init__()

    def __post_init__(self) -> None:
        if self.warmup_ratio is None:
            self.warmup_ratio = self.default_ratio
        check_finite(vars(self))
        if self.warmup is not None:
            if self.warmup not in WARMUPS:
                hint = nearest(str(self.warmup), WARMUPS)
                raise ConfigError(
                    f"no warmup named {self.warmup!r}; {hint}", key="warmup"
                )
            whole_number("warmup_iters", self.warmup_iters)
            fine = 0 < self.warmup_ratio <= 1.0
            require(fine, "warmup_ratio", "above 0 and at most 1", self.warmup_ratio)
        self.warmup_epochs = self.warmup_iters if self.warmup_by_epoch else None
        if self.warmup_by_epoch:
            self.warmup_iters = None

    def value(self, base: float, progress: int, total: int) -> float:
        """The regular value of a group whose initial value is `base`.

        Args:
            progress: completed epochs or iterations.
            total: how many there will be.
        """
        raise NotImplementedError(f"{type(self).__name__} must define value")

    def progress(self, runner: Run) -> tuple[int, int]:
        """Completed and total epochs or iterations, whichever the policy follows."""
        if self.by_epoch:
            return runner.epoch, runner.max_epochs  # type: ignore[return-value]
        return runner.iter, runner.max_iters  # type: ignore[return-value]

    def warmup_factor(self, cur_iters: int) -> float:
        """The factor of the warm-up in iteration `cur_iters`; see `WARMUPS`."""
        if self.warmup is None or not self.warmup_iters:
            return 1.0
        left = 1.0 - cur_iters / self.warmup_iters
        return float(WARMUPS[self.warmup](left, self.warmup_ratio))

    def before_run(self, runner: Run) -> None:
        own = type(self).before_train_iter is not ScheduleHook.before_train_iter
        if (
            self.by_epoch
            and self.follows_progress
            and not own
            and runner.max_epochs is None
        ):
            raise ConfigError(
                f"{type(self).__name__} has by_epoch=True, but this run is counted in "
                "iterations; give by_epoch=False"
            )
        named = optimizers_of(runner).items()
        self.base = [v for name, one in named for v in self._initial(name, one)]

    def before_train_epoch(self, runner: Run) -> None:
        self._resolve_warmup(runner)
        if self.by_epoch:
            self.regular = self._regular(runner)
            self._write(runner, self.regular)

    def before_train_iter(self, runner: Run) -> None:
        if not self.by_epoch:
            self.regular = values = self._regular(runner)
            if self.warmup is not None and runner.iter < self._resolve_warmup(runner):
                values = self._warm(runner.iter)
            self._write(runner, values)
        elif self.warmup is not None:
            last = self._resolve_warmup(runner)
            if runner.iter > last:
                return
            self.regular = self.regular or self._regular(runner)
            warm = runner.iter < last
            self._write(runner, self._warm(runner.iter) if warm else self.regular)

    def _resolve_warmup(self, runner: Run) -> int:
        """Iterations of the warm-up, once the length of an epoch is known."""
        if self.warmup_iters is None:
            self.warmup_iters = (self.warmup_epochs or 0) * len(runner.data_loader)
        return self.warmup_iters

    def _initial(self, name: str, optimizer: Any) -> list[float]:
        """The value each group began with, which the optimizer's state carries on."""
        raise NotImplementedError

    def _regular(self, runner: Run) -> Values:
        raise NotImplementedError

    def _warm(self, cur_iters: int) -> Values:
        raise NotImplementedError

    def _write(self, runner: Run, values: Values) -> None:
        raise NotImplementedError


def _renamed(name: str) -> Any:
    """The attribute `name` under MMCV's name, to read and to assign."""
    return property(attrgetter(name), lambda hook, values: setattr(hook, name, values))


@HOOKS.register_module()
class LrUpdaterHook(ScheduleHook):
    """Base of the learning-rate policies; a policy overrides `value` or `get_lr`.

    `base_lr` holds the `initial_lr` of each group: its `lr` when the first run began,
    which the optimizer's state carries through a resume. `regular_lr` holds the rates
    without warm-up.

    See `ScheduleHook` for the arguments.
    """

    priority = Priority.VERY_HIGH
    base_lr = _renamed("base")
    regular_lr = _renamed("regular")

    def get_lr(self, runner: Run, base_lr: float) -> float:
        """The regular rate of a group whose initial rate is `base_lr`."""
        return self.value(base_lr, *self.progress(runner))

    def get_regular_lr(self, runner: Run) -> Values:
        """`get_lr` of every group."""
        return [self.get_lr(runner, base) for base in self.base]

    def get_warmup_lr(self, cur_iters: int) -> Values:
        """`regular_lr` times the warm-up factor of iteration `cur_iters`."""
        factor = self.warmup_factor(cur_iters)
        return [lr * factor for lr in self.regular]

    def _set_lr(self, runner: Run, lr_groups: Values) -> None:
        for group, lr in zip(_groups(runner), lr_groups):
            write(group, "lr", lr)

    def _initial(self, name: str, optimizer: Any) -> list[float]:
        for group in optimizer.param_groups:
            # float(): a rate kept in a tensor would change together with it
            group.setdefault("initial_lr", float(group["lr"]))
        return [float(group["initial_lr"]) for group in optimizer.param_groups]

    def _regular(self, runner: Run) -> Values:
        return self.get_regular_lr(runner)

    def _warm(self, cur_iters: int) -> Values:
        return self.get_warmup_lr(cur_iters)

    def _write(self, runner: Run, values: Values) -> None:
        self._set_lr(runner, values)


@HOOKS.register_module()
class MomentumUpdaterHook(ScheduleHook):
    """Base of the momentum policies; a policy overrides `value` or `get_momentum`.

    What is scheduled is a group's `momentum`, or `betas[0]` where it has none.
    `base_momentum` is as `base_lr` of `LrUpdaterHook`.

    See `ScheduleHook` for the arguments. The warm-up divides by its factor: a
    momentum starts high where a learning rate starts low.
    """

    priority = Priority.HIGH
    default_ratio = 0.9
    base_momentum = _renamed("base")

    def get_momentum(self, runner: Run, base_momentum: Any) -> float:
        """The regular momentum of a group whose initial one is `base_momentum`."""
        return self.value(base_momentum, *self.progress(runner))

    def _initial(self, name: str, optimizer: Any) -> list[float]:
        for group in optimizer.param_groups:
            group.setdefault("initial_momentum", momentum_of(group, optimizer))
        return [group["initial_momentum"] for group in optimizer.param_groups]

    def _regular(self, runner: Run) -> Values:
        return [self.get_momentum(runner, base) for base in self.base]

    def _warm(self, cur_iters: int) -> Values:
        factor = self.warmup_factor(cur_iters)
        return [momentum / factor for momentum in self.regular]

    def _write(self, runner: Run, values: Values) -> None:
        for group, value in zip(_groups(runner), values):
            set_momentum(group, value)


@dataclass_transform(field_specifiers=(field,))
def policy(kind: Kind) -> Kind:
    """Register the hook `kind`: its fields are arguments, before the common ones."""
    made: Any = dataclass(eq=False)(kind)
    given = {one.name: (one.type, field(default=one.default)) for one in fields(made)}
    for name in _COMMON:
        given.setdefault(name, (Any, field(default=getattr(ScheduleHook, name))))
    same = make_dataclass(
        kind.__name__,
        [(name, *one) for name, one in given.items()],
        namespace={"__post_init__": made.__post_init__},
        eq=False,
    )
    made.__init__ = same.__init__  # type: ignore[misc]
    HOOKS.register_module(module=made)
    return kind


def require(fine: bool, name: str, rule: str, value: Any) -> None:
    """Refuse `value` of the argument `name` unless it is `fine`: it must be `rule`."""
    if not fine:
        raise ConfigError.of(name, f"must be {rule}, got {value!r}")


def optimizers_of(runner: Run) -> dict[str, Any]:
    """The optimizers of a run by name; a single one under its class name."""
    optimizer = runner.optimizer
    if isinstance(optimizer, dict):
        return optimizer
    if optimizer is None:
        raise ConfigError("a schedule needs an optimizer; this runner has none")
    return {type(optimizer).__name__: optimizer}


def _groups(runner: Run) -> Iterator[dict[str, Any]]:
    """The parameter groups of all optimizers in turn."""
    optimizers = optimizers_of(runner).values()
    return chain.from_iterable(map(attrgetter("param_groups"), optimizers))


def write(group: dict[str, Any], key: str, value: float) -> None:
    """Set `group[key]` if that changes it.

    A tensor (an optimizer with `capturable`) is filled in place: captured and compiled
    steps hold on to it, and reading it would make the host wait.
    """
    current = group[key]
    if isinstance(current, Tensor):
        current.fill_(value)
    elif current != value:
        group[key] = value


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
