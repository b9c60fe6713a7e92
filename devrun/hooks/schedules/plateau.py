"""`PlateauSchedulerHook`: ReduceLROnPlateau, stepped with what evaluation found."""

from __future__ import annotations

from typing import Any

from devrun.errors import ConfigError, nearest
from devrun.hooks.base import Hook, Priority, get_priority
from devrun.hooks.schedules.torch_names import build_scheduler, moved
from devrun.hooks.schedules.torch_scheduler import TorchSchedulerHook
from devrun.registry import HOOKS
from devrun.run import Run


@HOOKS.register_module()
class PlateauSchedulerHook(TorchSchedulerHook):
    """Lowers the rate when `monitor` has not improved for some evaluations.

    The value is looked up in `runner.log_buffer.output`, after the evaluation hook in
    the same stage, or after a val epoch of the workflow. An epoch (or iteration)
    without one changes nothing.

    Args:
        monitor: name of the value, such as `accuracy_top-1`, or `loss` of a val epoch.
        by_epoch: look after each epoch, else after each iteration as well.
        arguments: of `torch.optim.lr_scheduler.ReduceLROnPlateau`; `mode` is `min`
            or `max`.
    """

    # Behind evaluation (LOW, 70), before the loggers, which clear the values (90).
    priority = 80
    _takes_metric = True

    def __init__(
        self,
        monitor: str,
        by_epoch: bool = True,
        policy: Any = "ReduceLROnPlateau",
        **arguments: Any,
    ) -> None:
        super().__init__(policy, by_epoch, **arguments)
        self.monitor = monitor
        self._taken = False
        self._warned = False

    def before_run(self, runner: Run) -> None:
        if get_priority(self.priority) <= Priority.LOW.value:
            raise ConfigError(
                f"{self.policy} reads what evaluation (priority 70) found, so its own "
                f"priority must be above that, got {self.priority!r}; leave it out"
            )
        super().before_run(runner)

    def before_train_epoch(self, runner: Run) -> None:
        self._forget(runner)

    def before_train_iter(self, runner: Run) -> None:
        self._forget(runner)

    def after_train_iter(self, runner: Run) -> None:
        self._take(runner)

    def after_train_epoch(self, runner: Run) -> None:
        self._take(runner)

    def after_val_epoch(self, runner: Run) -> None:
        means = runner.log_buffer.means()
        if not self._taken and self.monitor in means:
            self._step(means[self.monitor])

    def after_run(self, runner: Run) -> None:
        if not self.steps:
            runner.logger.warning(
                "%s never got a value of %r, so the learning rate was never lowered",
                self.policy,
                self.monitor,
            )

    def get_triggered_stages(self) -> list[str]:
        """As in `Hook`, without the iterations when it follows epochs."""
        stages = Hook.get_triggered_stages(self)
        if self.by_epoch:
            return [s for s in stages if not s.endswith("_train_iter")]
        return stages

    def _started(self, optimizer: Any) -> Any:
        if self.given is not None:
            return moved(self.given, optimizer)
        # Its past cannot be stepped through: it goes on from the present rate.
        return build_scheduler(self._kind, optimizer, self.arguments)

    def _forget(self, runner: Run) -> None:
        """Drop a value that was there before; only a new one counts."""
        runner.log_buffer.output.pop(self.monitor, None)
        self._taken = False

    def _step(self, value: float) -> None:
        for scheduler in self.schedulers.values():
            scheduler.step(value)
        self.steps += 1
        self._taken = True

    def _take(self, runner: Run) -> None:
        found = runner.log_buffer.output
        if self._taken:
            return
        if self.monitor in found:
            self._step(float(found[self.monitor]))
        elif "eval_iter_num" in found and not self._warned:
            self._warned = True
            names = [name for name in found if name != "eval_iter_num"]
            runner.logger.warning(
                "evaluation has no %r for %s; %s",
                self.monitor,
                self.policy,
                nearest(self.monitor, names),
            )
