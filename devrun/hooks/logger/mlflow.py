"""`MlflowLoggerHook`: records for MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devrun.config.redact import redacted
from devrun.hooks.logger.hook import LoggerHook, import_extra
from devrun.registry import HOOKS
from devrun.run import Run


@HOOKS.register_module()
class MlflowLoggerHook(LoggerHook):
    """Logs the numbers of `get_loggable_tags` as MLflow metrics.

    A run of the user's own that is active is used and left open; otherwise one is
    started, and ended with the training.

    Args:
        exp_name: experiment to use, made if missing; else the active one.
        tags: of the run.
        params: parameters of the run.
        log_model: whether the model is logged at the end.

    Raises:
        ConfigError: mlflow is not installed.
    """

    def __init__(
        self,
        exp_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        log_model: bool = True,
        interval: int = 10,
        ignore_last: bool = True,
        reset_flag: bool = False,
        by_epoch: bool = True,
    ) -> None:
        super().__init__(interval, ignore_last, reset_flag, by_epoch)
        self.mlflow = import_extra("mlflow", "MlflowLoggerHook", "mlflow")
        if log_model:
            import_extra("mlflow.pytorch", "MlflowLoggerHook", "mlflow")
        self.exp_name = exp_name
        self.tags = tags
        self.params = params
        self.log_model = log_model
        self._started = False

    def prepare_dry_run(self) -> bool:
        return False  # it would leave a run in MLflow

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        if runner.rank != 0:
            return
        if self.exp_name is not None:
            self.mlflow.set_experiment(self.exp_name)
        if self.mlflow.active_run() is None:
            self.mlflow.start_run()
            self._started = True
        if self.tags is not None:
            self.mlflow.set_tags(redacted(dict(self.tags)))
        if self.params is not None:
            self.mlflow.log_params(redacted(dict(self.params)))

    def log(self, runner: Run) -> None:
        tags = self.get_loggable_tags(runner)
        if tags:
            self.mlflow.log_metrics(tags, step=self.get_iter(runner))

    def after_run(self, runner: Run) -> None:
        super().after_run(runner)
        if self.log_model and runner.rank == 0:
            import torch

            self.mlflow.pytorch.log_model(
                runner.model, "models", pip_requirements=[f"torch=={torch.__version__}"]
            )
        self._end("FINISHED")

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self._end("FAILED")

    def _end(self, status: str) -> None:
        """End the run, unless it was the user's before training."""
        if self._started:
            self.mlflow.end_run(status)
            self._started = False
