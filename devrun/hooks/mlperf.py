"""`MLPerfLoggerHook`: a run to a target quality, logged as MLPerf's rules want it.

Unofficial: MLPerf is a name of MLCommons, and its results are those that it has
reviewed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devrun.errors import ConfigError
from devrun.hooks.early_stopping import ResultHook
from devrun.hooks.evaluation.best import infer_rule, is_better
from devrun.hooks.evaluation.hook import EvalHook
from devrun.log.mlperf import logger_type, mllog
from devrun.parallel.strategy import optimizers_in
from devrun.registry import HOOKS
from devrun.run import Run

UNOFFICIAL = "unofficial, not verified by MLCommons"
SUFFIX = ".mlperf.txt"
"""Of the file in the work_dir, after the run's timestamp."""


@HOOKS.register_module()
class MLPerfLoggerHook(ResultHook):
    """Ends the run when an evaluation reaches the target, and writes the events of
    MLPerf's training rules to `TIMESTAMP.mlperf.txt`, by the package mlperf-logging.

    Args:
        target: a result of the evaluation and its value, `{accuracy: 0.99}`.
        rule: `greater` or `less`; inferred from the name if not given.
        benchmark: one of MLPerf's, whose rules the log is for.
        org: who trains.
        seed: to log; the key `benchmark` gives the run's.

    Raises:
        ConfigError: the package is not here, or an argument cannot be used.
    """

    def __init__(
        self,
        target: Mapping[str, float],
        rule: str | None = None,
        benchmark: str = "resnet",
        org: str = UNOFFICIAL,
        seed: int | None = None,
    ) -> None:
        if len(target) != 1:
            raise ConfigError.of(
                "target", f"must be one result such as {{accuracy: 0.99}}, got {target}"
            )
        ((self.monitor, self.target),) = target.items()
        self.rule = infer_rule(self.monitor, rule)
        self.benchmark, self.org, self.seed = benchmark, org, seed
        self.best: float | None = None
        self._began = int(time.time() * 1000)
        self._logger_type = logger_type()
        self._log: Any = None
        self._running = False
        self._samples = 0
        self._block: dict[str, Any] = {}

    def before_run(self, runner: Run) -> None:
        if not any(isinstance(hook, EvalHook) for hook in runner.hooks):
            raise ConfigError(
                f"the target {self.monitor} {self.target} is of an evaluation, and "
                "this run has none: give it data.val, and leave --no-validate out"
            )
        if runner.rank == 0 and runner.work_dir is not None:
            path = Path(runner.work_dir) / f"{runner.timestamp}{SUFFIX}"
            self._log = mllog(self._logger_type, path)
        device = runner.adapter.name + " (emulated)" * runner.adapter.emulated
        self._event("cache_clear", True)
        self._start("init_start", time_ms=self._began)
        for key, value in {
            "benchmark": self.benchmark,
            "division": "open",
            "org": self.org,
            "platform": f"{device} x {runner.world_size}",
            "status": "research",
        }.items():
            self._event(f"submission_{key}", value)
        self._event("seed", self.seed)
        for key, value in _hyperparameters(runner).items():
            self._event(key, value)
        self._end("init_stop")
        self._start("run_start")
        self._running = True
        runner.eval_contexts.append(self._evaluating)

    def before_train_iter(self, runner: Run) -> None:
        if not self._samples:
            loader = runner.data_loader
            ranks = runner.adapter.data_share[1]
            self._samples = (loader.samples_per_update or 1) * ranks
            self._event("global_batch_size", self._samples)
            self._event("train_samples", len(loader.dataset))
            self._event("eval_samples", _evaluated(runner))
        if not self._block:  # which ends with the next evaluation
            self._block = self._place(runner)
            self._start("block_start", self._block)

    def follow(self, runner: Run, value: float) -> None:
        self._event("eval_accuracy", value, {**self._block, "target": self.target})
        if self.best is None or is_better(self.rule, value, self.best):
            self.best = value
        sign = 1 if self.rule == "greater" else -1
        if sign * value >= sign * self.target and self._running:
            self._stop("success")
            runner.request_stop(f"{self.monitor} {value:.6g} reached {self.target}")
        self._block = {}

    def after_run(self, runner: Run) -> None:
        if self._running:
            self._stop("aborted")
            best = (
                "never evaluated" if self.best is None else f"{self.best:.6g} at best"
            )
            runner.logger.warning(
                "the target %s %s was not reached: %s", self.monitor, self.target, best
            )
        self._close()

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        if self._running:
            self._stop("aborted")
        self._close()

    def _close(self) -> None:
        if self._log is not None:
            self._log.logger.handlers[0].close()
            self._log = None

    @contextmanager
    def _evaluating(self, runner: Run) -> Iterator[None]:
        """The run evaluates, which ends a block of training; the clock goes on."""
        if not self._running:
            yield
            return
        if self._block:
            self._end("block_stop", self._block)
        else:
            self._block = self._place(runner)
        self._start("eval_start", self._block)
        yield
        self._end("eval_stop", self._block)

    def _place(self, runner: Run) -> dict[str, Any]:
        """Where in the training a block begins."""
        number = 1 + runner.epoch if runner.state.by_epoch else 1
        return {
            "first_epoch_num": number,
            "epoch_num": number,
            "epoch_count": 1,
            "samples_count": runner.iter * self._samples,
        }

    def _stop(self, status: str) -> None:
        self._running = False
        self._end("run_stop", {"status": status})

    def _event(self, key: str, value: Any, metadata: Any = None) -> None:
        if self._log is not None:
            self._log.event(key, value, metadata)

    def _start(self, key: str, metadata: Any = None, **more: Any) -> None:
        if self._log is not None:
            self._log.start(key, None, metadata, **more)

    def _end(self, key: str, metadata: Any = None) -> None:
        if self._log is not None:
            self._log.end(key, None, metadata)


def _evaluated(runner: Run) -> int:
    """The samples of an evaluation."""
    hooks = [hook for hook in runner.hooks if isinstance(hook, EvalHook)]
    return sum(len(each.dataset) for hook in hooks for each in hook.loaders.values())


def _hyperparameters(runner: Run) -> dict[str, Any]:
    """By MLPerf's names, those that every training has."""
    policy = runner.policy
    optimizer = optimizers_in(runner.optimizer)[0]
    group = optimizer.param_groups[0]
    name = type(optimizer).__name__.lower()
    clip = (policy.grad_clip or {}).get("max_norm")
    known = {
        "opt_name": name,
        "opt_base_learning_rate": float(group.get("initial_lr", group["lr"])),
        "opt_weight_decay": group.get("weight_decay"),
        f"opt_{name}_momentum": group.get("momentum"),
        "opt_gradient_clip_norm": clip,
        "gradient_accumulation_steps": policy.accumulate,
    }
    return {key: value for key, value in known.items() if value is not None}
