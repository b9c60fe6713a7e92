"""From `lr_config` and `momentum_config` to a hook; torch's schedulers as policies."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer, lr_scheduler

import devrun.hooks.schedules.policies  # noqa: F401 - fills the registry
from devrun import trust
from devrun.config.numbers import whole_number
from devrun.construct import check_call, where
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    UnknownNameError,
    nearest,
)
from devrun.hooks.base import Hook, Priority
from devrun.hooks.early_stopping import ResultHook
from devrun.hooks.schedules.hook import optimizers_of, write
from devrun.registry import HOOKS, LR_SCHEDULERS, build_from_cfg
from devrun.run import Run
from devrun.torch_features import mark_stepped

Scheduler = lr_scheduler.LRScheduler
Plateau = lr_scheduler.ReduceLROnPlateau
COUNTS = ("num_bad_epochs", "cooldown_counter", "last_epoch")
LR = "LrUpdaterHook"
MOMENTUM = "MomentumUpdaterHook"


def build_lr_hook(cfg: Mapping[str, Any] | Hook) -> Hook:
    """The hook of an `lr_config`, which is left as it was.

    `policy` is the name of an MMCV policy (`step`, `CosineAnnealing`: the hook named
    `<Policy>LrUpdaterHook`, with the first letter of each word made upper case when
    all are lower case), or a class of `torch.optim.lr_scheduler` (`CosineAnnealingLR`);
    the other keys are its arguments. A hook is returned as it is.

    Raises:
        UnknownNameError: no policy of that name, or none given.
        ConfigError: the policy does not take these arguments.
    """
    return _hook(cfg, "lr_config", LR)


def build_momentum_hook(cfg: Mapping[str, Any] | Hook) -> Hook:
    """The hook of a `momentum_config`, which is left as it was.

    As `build_lr_hook`, with the hooks named `<Policy>MomentumUpdaterHook`.
    """
    return _hook(cfg, "momentum_config", MOMENTUM)


def _hook(cfg: Any, section: str, suffix: str) -> Hook:
    """The hook of a section, whose policies have hooks with this `suffix`."""
    if isinstance(cfg, Hook):
        return cfg
    if not isinstance(cfg, Mapping):
        raise ConfigTypeError(f"{section} must be a dict or a hook, got {cfg!r}")
    names = (name.partition(suffix) for name in HOOKS.module_dict)
    known = sorted(start for start, found, end in names if start and found and not end)
    if "policy" not in cfg:
        raise UnknownNameError(
            f"{section} needs a 'policy'; known: {', '.join(known)}", place=where(cfg)
        )
    args: Any = copy.copy(cfg)
    policy = args.pop("policy")
    name = (policy.title() if policy.islower() else policy) + suffix
    # the package that the config was written for may have such a policy
    if policy and (name in HOOKS or HOOKS.scoped(name) is not None):
        args["type"] = name
    elif suffix == LR and (policy in LR_SCHEDULERS or "." in policy):
        metric: Any = LR_SCHEDULERS.resolve(policy) is Plateau
        hook = "PlateauSchedulerHook" if metric else "TorchSchedulerHook"
        args.update(type=hook, policy=policy)
    else:
        known += LR_SCHEDULERS.module_dict if suffix == LR else ()
        what = "learning-rate" if suffix == LR else "momentum"
        raise UnknownNameError(
            f"no {what} policy {policy!r}; {nearest(policy, known)}",
            place=where(cfg, "policy"),
        )
    built: Hook = build_from_cfg(args, HOOKS)
    return built


@HOOKS.register_module()
class TorchSchedulerHook(Hook):
    """Steps a torch scheduler once for each completed update or epoch.

    The step is taken just before the next iteration or epoch, so that what is logged
    after an update is the rate it was done with, and never before an update. It has no
    state: a run that is resumed steps a new one from the first rates to where it is.

    Args:
        policy: name of the class: torch's, one in LR_SCHEDULERS, or a dotted path; or
            a scheduler that was made already.
        by_epoch: step after each epoch, else after each update.
        frequency: step after each so many of them.
        arguments: the scheduler's own, without `optimizer`. For SequentialLR and
            ChainedScheduler `schedulers` is a list of dicts with a `policy` each.

    Raises:
        UnknownNameError: no scheduler of that name.
        ConfigTypeError: an argument is unknown or missing.
    """

    priority: Any = Priority.VERY_HIGH

    def __init__(
        self,
        policy: str | Scheduler,
        by_epoch: bool = True,
        *,
        frequency: int = 1,
        **arguments: Any,
    ) -> None:
        self.given: Any = None if isinstance(policy, str) else policy
        self._kind = _class(policy) if isinstance(policy, str) else type(policy)
        if self.given is None:
            _check_arguments(self._kind, arguments)
        else:
            self._first = copy.deepcopy(self.given.state_dict())
        self.by_epoch = by_epoch
        self.frequency = whole_number("frequency", frequency)
        self.arguments = arguments
        self.schedulers: dict[str, Any] = {}
        self.steps = 0
        self._optimizer: Any = None

    def before_run(self, runner: Run) -> None:
        if self.by_epoch and runner.max_epochs is None:
            raise ConfigError(
                f"lr policy {self._kind.__name__} has by_epoch=True, but this run is "
                "counted in iterations; give by_epoch=False"
            )
        if self._optimizer is not runner.optimizer:
            self._start(runner)

    def before_train_epoch(self, runner: Run) -> None:
        if self.by_epoch:
            self._step_to(runner.epoch // self.frequency, runner)

    def before_train_iter(self, runner: Run) -> None:
        if not self.by_epoch:
            self._step_to(runner.iter // self.frequency, runner)

    def after_load_checkpoint(self, runner: Run, checkpoint: dict[str, Any]) -> None:
        self._optimizer = None  # its rates are no longer those of the last step

    def _start(self, runner: Run) -> None:
        self._optimizer, self.steps = runner.optimizer, 0
        for name, optimizer in optimizers_of(runner).items():
            self.schedulers[name] = self._started(optimizer)

    def _started(self, optimizer: Any) -> Any:
        """A scheduler at its beginning, with the optimizer's rates there too."""
        groups = optimizer.param_groups
        if self.given is None:
            for group in groups:
                write(group, "lr", float(group.get("initial_lr", group["lr"])))
            return _built(self._kind, optimizer, self.arguments)
        # for the optimizer that a device may have made of the one it was made for
        for part in (self.given, *getattr(self.given, "_schedulers", ())):
            part.optimizer = optimizer
        self.given.load_state_dict(copy.deepcopy(self._first))
        for group, lr in zip(groups, self.given.get_last_lr()):
            write(group, "lr", float(lr))
        return self.given

    def _step_to(self, steps: int, runner: Run) -> None:
        if self._optimizer is not runner.optimizer:
            self._start(runner)
        while self.steps < steps:
            for scheduler in self.schedulers.values():
                # An update was done, on some devices not by `optimizer.step`, of which
                # torch would warn.
                mark_stepped(scheduler.optimizer)
                scheduler.step()
            self.steps += 1


@HOOKS.register_module()
class PlateauSchedulerHook(ResultHook, TorchSchedulerHook):
    """Lowers the rate when `monitor` has not improved for some evaluations.

    Args:
        monitor: name of the result, such as `accuracy_top-1`; see `ResultHook`.
        by_epoch: changes nothing: each evaluation counts.
        arguments: of `torch.optim.lr_scheduler.ReduceLROnPlateau`; `mode` is `min`
            or `max`.
    """

    def __init__(
        self,
        monitor: str,
        by_epoch: bool = False,
        policy: Any = "ReduceLROnPlateau",
        **arguments: Any,
    ) -> None:
        super().__init__(policy, by_epoch=False, **arguments)
        self.monitor = monitor
        self._saved: dict[str, Any] = {}

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        self.load_state_dict(self._saved)

    def before_train_iter(self, runner: Run) -> None:
        """Nothing: it is stepped by `follow`."""

    def after_load_checkpoint(self, runner: Run, checkpoint: dict[str, Any]) -> None:
        """Nothing: it goes on with its own state."""

    def follow(self, runner: Run, value: float) -> None:
        for scheduler in self.schedulers.values():
            scheduler.step(value)

    def state_dict(self) -> dict[str, Any]:
        """What the scheduler of each optimizer has seen, and the rates in force."""
        return {
            name: {
                "best": repr(float(one.best)),  # JSON has no infinity
                "counts": {key: vars(one)[key] for key in COUNTS},
                "rates": [float(group["lr"]) for group in one.optimizer.param_groups],
            }
            for name, one in self.schedulers.items()
        } or self._saved

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Taken at once, or in `before_run` when there is no scheduler yet."""
        self._saved = {} if self.schedulers else state
        for name in state.keys() & self.schedulers.keys():
            one, seen = self.schedulers[name], state[name]
            vars(one).update(seen["counts"], best=float(seen["best"]))
            groups = one.optimizer.param_groups
            for group, lr in zip(groups, seen["rates"]):
                write(group, "lr", lr)

    def _started(self, optimizer: Any) -> Any:
        """A scheduler that has seen nothing, at the rates in force."""
        if self.given is None:
            return _built(self._kind, optimizer, self.arguments)
        self.given.optimizer = optimizer
        return self.given


def _register_torch_schedulers() -> None:
    for name, kind in vars(lr_scheduler).items():
        # Before torch 2.2 the plateau's is of no common class.
        if inspect.isclass(kind) and issubclass(kind, (Scheduler, Plateau)):
            if kind is not Scheduler and not name.startswith("_"):
                LR_SCHEDULERS.register_module(name, module=kind)


_register_torch_schedulers()


def _check_arguments(kind: type[Scheduler], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that `kind` does not take, and dicts that are no schedulers."""
    trust.check_arguments(kind, arguments)
    for key in {"optimizer", "last_epoch"} & arguments.keys():  # the run's, no user's
        raise ConfigTypeError(
            f"{kind.__name__} takes no argument {key!r} here", key=key
        )
    check_call(kind, {**arguments, **_given(kind, None)}, arguments)
    parts = arguments.get("schedulers", ())
    for at, entry in enumerate(parts):
        try:
            _check_arguments(*_part(entry))
        except ConfigError as error:
            error.locate(where(parts, at))
            raise


def _built(
    kind: type[Scheduler], optimizer: Optimizer, arguments: Mapping[str, Any]
) -> Scheduler:
    """`kind(optimizer, **arguments)`, entries of `schedulers` built first."""
    options = dict(arguments)
    if "schedulers" in options:
        options["schedulers"] = [
            _built(part, optimizer, rest)
            for part, rest in map(_part, options["schedulers"])
        ]
    scheduler: Scheduler = LR_SCHEDULERS.build(
        {"type": kind, **options, **_given(kind, optimizer)}
    )
    return scheduler


def _class(policy: str) -> Any:
    kind = LR_SCHEDULERS.resolve(policy)
    if not inspect.isclass(kind):
        raise ConfigTypeError(f"policy {policy!r} must be a class of a scheduler")
    return kind


def _given(kind: type[Scheduler], optimizer: Any) -> dict[str, Any]:
    """`optimizer` as an argument, where `kind` takes one."""
    takes_it = "optimizer" in inspect.signature(kind).parameters
    return {"optimizer": optimizer} if takes_it else {}


def _part(entry: Any) -> tuple[type[Scheduler], dict[str, Any]]:
    """One of `schedulers`: (class, arguments)."""
    if not isinstance(entry, Mapping) or "policy" not in entry:
        raise ConfigTypeError(
            f"each of schedulers must be a dict with a 'policy', got {entry!r}"
        )
    arguments = {key: value for key, value in entry.items() if key != "policy"}
    return _class(str(entry["policy"])), arguments
