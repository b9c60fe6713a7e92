"""Hooks that follow one result of the evaluation; `EarlyStoppingHook` is one."""

from __future__ import annotations

import math
from typing import Any

from devrun.config.numbers import check_finite, whole_number
from devrun.errors import ConfigError, UnknownNameError, nearest
from devrun.hooks.base import Hook
from devrun.hooks.evaluation.best import as_score, infer_rule, is_better
from devrun.hooks.evaluation.hook import EvalHook
from devrun.hooks.logger.hook import average_over_ranks
from devrun.registry import HOOKS
from devrun.run import Run


class ResultHook(Hook):
    """Calls `follow` with the result `monitor` of each evaluation.

    These are the results of `EvalHook`, and in a run without one the means of each val
    epoch of the epoch runner.
    """

    priority: Any = 80  # after evaluation (LOW), before the loggers take the results
    monitor: str

    def follow(self, runner: Run, value: float) -> None:
        """Do what there is to do with the newest value."""
        raise NotImplementedError

    def after_train_epoch(self, runner: Run) -> None:
        self._check_results(runner)

    def after_train_iter(self, runner: Run) -> None:
        if runner.log_buffer.ready:
            self._check_results(runner)

    def after_val_epoch(self, runner: Run) -> None:
        if not any(isinstance(hook, EvalHook) for hook in runner.hooks):
            average_over_ranks(runner, 0)
            self._take(runner)

    def _check_results(self, runner: Run) -> None:
        """Take the results of an evaluation, if there was one."""
        now = (runner.epoch, runner.iter)
        evaluated = any(
            isinstance(hook, EvalHook) and hook.evaluated_at == now
            for hook in runner.hooks
        )
        if evaluated and "eval_iter_num" in runner.log_buffer.output:
            self._take(runner)

    def _take(self, runner: Run) -> None:
        output = runner.log_buffer.output
        if self.monitor not in output:
            names = [name for name in output if name != "eval_iter_num"]
            if not names:  # a dry run calls no `evaluate`
                runner.logger.warning("no results of the evaluation to follow")
                return
            raise UnknownNameError(
                f"{type(self).__name__} monitors {self.monitor!r}, which is not a "
                f"result of the evaluation; {nearest(self.monitor, names)}"
            )
        self.follow(runner, as_score(self.monitor, output[self.monitor]))


@HOOKS.register_module()
class EarlyStoppingHook(ResultHook):
    """Asks the runner to stop after `patience` evaluations without improvement.

    It looks at what `ResultHook` says; a value that is not finite counts as no
    improvement.

    Args:
        monitor: name of the result.
        rule: `greater` or `less`; inferred from the name if not given.
        patience: evaluations in a row without improvement that end the run.
        min_delta: by how much a result must be better to count.
        min_epochs, min_iters: what is trained in any case; where the patience is over
            before that, the next evaluation without improvement ends the run.

    Raises:
        ConfigError: an argument cannot be used, or results come without `monitor`.
    """

    def __init__(
        self,
        monitor: str = "loss",
        rule: str | None = None,
        patience: int = 5,
        min_delta: float = 0.0,
        min_epochs: int = 0,
        min_iters: int = 0,
    ) -> None:
        whole_number("patience", patience)
        whole_number("min_epochs", min_epochs, least=0)
        whole_number("min_iters", min_iters, least=0)
        check_finite({"min_delta": min_delta})
        if min_delta < 0:
            raise ConfigError.of("min_delta", f"must be 0 or more, got {min_delta!r}")
        self.monitor = monitor
        self.rule = infer_rule(monitor, rule)
        self.patience = patience
        self.min_delta = min_delta
        self.least = {"epoch": min_epochs, "iter": min_iters}
        self.best: float | None = None
        self.waited = 0

    def state_dict(self) -> dict[str, Any]:
        return {"monitor": self.monitor, "best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["monitor"] == self.monitor:
            self.best, self.waited = state["best"], state["waited"]

    def follow(self, runner: Run, value: float) -> None:
        if math.isfinite(value) and (
            self.best is None or is_better(self.rule, value, self.best, self.min_delta)
        ):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        done = runner.state.position()
        enough = all(done[what] >= least for what, least in self.least.items())
        if self.waited >= self.patience and enough:
            best = "never finite" if self.best is None else f"{self.best:.6g} at best"
            runner.request_stop(
                f"{self.monitor} ({best}) did not improve in {self.waited} evaluations"
            )
