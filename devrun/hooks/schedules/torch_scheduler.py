"""`TorchSchedulerHook`: any scheduler of `torch.optim.lr_scheduler` as a policy."""

from __future__ import annotations

import math
from typing import Any

from torch.optim import lr_scheduler

from devrun.errors import CheckpointError, ConfigError, UnknownNameError, nearest
from devrun.hooks.base import Hook, Priority
from devrun.hooks.schedules.hook import optimizers_of, write
from devrun.hooks.schedules.torch_names import (
    build_scheduler,
    check_arguments,
    find_scheduler,
    moved,
    scheduler_names,
)
from devrun.hooks.schedules.torch_state import encode, overlay
from devrun.registry import HOOKS
from devrun.run import Run

SCHEDULED = ("lr", "momentum", "betas")


@HOOKS.register_module()
class TorchSchedulerHook(Hook):
    """Steps a torch scheduler once for each completed update or epoch.

    The step is taken just before the next iteration or epoch, so that what is logged
    after an update is the rate it was done with, and never before an update. A
    scheduler whose arguments changed since a checkpoint is stepped anew to where the
    run is; else its state is restored.

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
        policy: str | lr_scheduler.LRScheduler,
        by_epoch: bool = True,
        *,
        frequency: int = 1,
        **arguments: Any,
    ) -> None:
        self.given = None if isinstance(policy, str) else policy
        kind = find_scheduler(policy) if isinstance(policy, str) else type(policy)
        if kind is None:
            hint = nearest(str(policy), scheduler_names())
            raise UnknownNameError(
                f"no torch scheduler {policy!r}; {hint}", key="policy"
            )
        if issubclass(kind, lr_scheduler.ReduceLROnPlateau) != self._takes_metric:
            raise ConfigError(
                f"{type(self).__name__} cannot run {policy}; lr_config with this "
                "policy picks the right hook",
                key="policy",
            )
        if self.given is None:
            check_arguments(kind, arguments)
        most = 1 if self._takes_metric else math.inf  # it looks after each evaluation
        if type(frequency) is not int or not 1 <= frequency <= most:
            raise ConfigError.of(
                "frequency", f"must be an int of 1 to {most}, got {frequency!r}"
            )
        self.policy = policy if isinstance(policy, str) else kind.__name__
        self.by_epoch, self.frequency = by_epoch, frequency
        self.arguments = arguments
        self.schedulers: dict[str, Any] = {}
        self.steps = 0
        self._kind = kind
        self._optimizer: Any = None
        self._saved: dict[str, Any] | None = None
        self._logger: Any = None

    _takes_metric = False

    def before_run(self, runner: Run) -> None:
        if self.by_epoch and runner.max_epochs is None:
            raise ConfigError(
                f"lr policy {self.policy} has by_epoch=True, but this run is counted "
                "in iterations; give by_epoch=False"
            )
        self._logger = runner.logger
        if self._optimizer is not runner.optimizer:
            self._optimizer, self.steps, self.schedulers = runner.optimizer, 0, {}
            for name, optimizer in optimizers_of(runner).items():
                self.schedulers[name] = self._started(optimizer)
        if self._saved is not None:
            self._resume(self._saved)

    def before_train_epoch(self, runner: Run) -> None:
        if self.by_epoch:
            self._step_to(runner.epoch)

    def before_train_iter(self, runner: Run) -> None:
        if not self.by_epoch:
            self._step_to(runner.iter)

    def get_triggered_stages(self) -> list[str]:
        """As in `Hook`, less the stage in which nothing is stepped."""
        idle = "before_train_iter" if self.by_epoch else "before_train_epoch"
        return [stage for stage in super().get_triggered_stages() if stage != idle]

    def state_dict(self) -> dict[str, Any]:
        """Position of every scheduler, and the rates in force."""
        if not self.schedulers:
            return self._saved or {}
        groups = {
            name: [
                encode({key: group[key] for key in SCHEDULED if key in group})
                for group in scheduler.optimizer.param_groups
            ]
            for name, scheduler in self.schedulers.items()
        }
        states = {name: encode(s.state_dict()) for name, s in self.schedulers.items()}
        return {
            "policy": self.policy,
            "arguments": encode(self.arguments),
            "steps": self.steps,
            "schedulers": states,
            "groups": groups,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Taken at once, or in `before_run` when there is no scheduler yet."""
        if self.schedulers:
            self._resume(state)
        else:
            self._saved = state

    def _resume(self, saved: dict[str, Any]) -> None:
        self._saved = None
        mine = (self.policy, encode(self.arguments))
        if (saved["policy"], saved["arguments"]) != mine:
            self._logger.warning(
                "the scheduler was saved as %s with %s and is now %s with %s: "
                "it starts anew and is stepped to where the run is",
                saved["policy"],
                saved["arguments"],
                *mine,
            )
            return
        sizes = {n: len(s.optimizer.param_groups) for n, s in self.schedulers.items()}
        if {name: len(rows) for name, rows in saved["groups"].items()} != sizes:
            raise CheckpointError(
                f"the checkpoint has schedulers for {sorted(saved['groups'])} with "
                "other parameter groups than this run's optimizers; resume with the "
                "same optimizer section"
            )
        for name, scheduler in self.schedulers.items():
            state = overlay(scheduler.state_dict(), saved["schedulers"][name])
            scheduler.load_state_dict(state)
            groups = scheduler.optimizer.param_groups
            for group, row in zip(groups, saved["groups"][name], strict=True):
                for key, value in row.items():
                    if isinstance(value, list):
                        group[key] = tuple(value)
                    else:
                        write(group, key, value)
        self.steps = saved["steps"]

    def _started(self, optimizer: Any) -> Any:
        """A scheduler at its beginning."""
        if self.given is not None:
            return moved(self.given, optimizer)
        for group in optimizer.param_groups:
            write(group, "lr", float(group.get("initial_lr", group["lr"])))
        return build_scheduler(self._kind, optimizer, self.arguments)

    def _step_to(self, progress: int) -> None:
        while self.steps < progress // self.frequency:
            for scheduler in self.schedulers.values():
                # An update was done, on some devices not by `optimizer.step`, of which
                # torch would warn.
                vars(scheduler.optimizer)["_opt_called"] = True
                scheduler.step()
            self.steps += 1
