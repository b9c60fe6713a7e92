"""Loggers that hand a run's numbers to TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import torch

from devrun.checkpoint.storage import check_possible, check_writable
from devrun.config.origin import redacted
from devrun.errors import ConfigError, ConfigTypeError, nearest
from devrun.files import own_folder
from devrun.hooks.logger.hook import LoggerHook
from devrun.redact import redact
from devrun.registry import HOOKS
from devrun.run import Run
from devrun.text import joined

INIT = (
    "entity", "project", "name", "notes", "tags", "group", "job_type", "id",
    "resume", "mode", "dir", "config", "allow_val_change",
)  # fmt: skip
"""Arguments of `wandb.init` that a config may give: none of them runs code, or
uploads files that the run did not write."""


@HOOKS.register_module()
class TensorboardLoggerHook(LoggerHook):
    """Writes scalars and texts under `train/`, `val/`, `learning_rate`, `momentum`.

    The horizontal axis is the number of completed updates.

    Args:
        log_dir: where the event files go; `<work_dir>/tf_logs` if not given.
        kwargs: see `LoggerHook`.

    Raises:
        ConfigError: tensorboard is not installed.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        tools = _package("torch.utils.tensorboard", self, "tensorboard")
        self._writer_class = tools.SummaryWriter
        self.log_dir = log_dir
        self.writer: Any = None

    def prepare_dry_run(self) -> bool:
        if self.log_dir is not None:
            check_possible(self.log_dir)
            self.log_dir = None
        return super().prepare_dry_run()

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        if runner.rank != 0:
            return
        if self.log_dir is None and runner.work_dir is None:
            raise ConfigError("TensorboardLoggerHook needs log_dir, or a work_dir")
        where = self.log_dir or own_folder(str(runner.work_dir), "tf_logs")
        check_writable(where)
        self.writer = self._writer_class(os.fspath(where))

    def log(self, runner: Run) -> None:
        step = self.get_iter(runner)
        for tag, value in self.get_loggable_tags(runner, allow_text=True).items():
            if isinstance(value, str):
                self.writer.add_text(tag, redact(value), step)
            else:
                self.writer.add_scalar(tag, value, step)

    def close(self, runner: Run, *, failed: bool) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


@HOOKS.register_module()
class WandbLoggerHook(LoggerHook):
    """Sends the tags of `get_loggable_tags` to wandb.

    Args:
        init_kwargs: for `wandb.init`, as far as they say what is recorded and where
            it is shown: see `INIT`. For more, call `wandb.init` before the run.
        commit: False leaves every row open until the next `wandb.log` of the user.
        with_step: whether the axis is the number of completed updates; otherwise that
            number is logged as `global_step`. With it a row is closed by the next
            step, not at once: wandb drops what comes for a step that was closed, and
            an evaluation has the step of the training record before it.
        kwargs: see `LoggerHook`.

    Raises:
        ConfigError: wandb is not installed, or an unknown argument of `init_kwargs`.
    """

    def __init__(
        self,
        init_kwargs: Mapping[str, Any] | None = None,
        *,
        commit: bool = True,
        with_step: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.wandb = _package("wandb", self, "wandb")
        self.init_kwargs = _checked(init_kwargs)
        self.commit, self.with_step = commit, with_step
        self.run: Any = None

    def prepare_dry_run(self) -> bool:
        return False  # it would leave a run in wandb

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        if runner.rank != 0:
            return
        kwargs = dict(self.init_kwargs)
        if runner.work_dir is not None:
            own_folder(runner.work_dir, "wandb")
            kwargs.setdefault("dir", runner.work_dir)
        for name in {"config", "notes", "tags"} & kwargs.keys():  # what it shows
            kwargs[name] = redacted(kwargs[name])
        self.run = self.wandb.init(**kwargs)

    def log(self, runner: Run) -> None:
        tags = self.get_loggable_tags(runner)
        step = self.get_iter(runner)
        if self.with_step:
            self.run.log(tags, step=step)
        else:
            self.run.log({**tags, "global_step": step}, commit=self.commit)

    def close(self, runner: Run, *, failed: bool) -> None:
        if self.run is not None:
            self.run.finish(exit_code=int(failed))
            self.run = None


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
        kwargs: see `LoggerHook`.

    Raises:
        ConfigError: mlflow is not installed.
    """

    def __init__(
        self,
        exp_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        log_model: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mlflow = _package("mlflow", self, "mlflow")
        if log_model:
            _package("mlflow.pytorch", self, "mlflow")
        self.exp_name, self.log_model = exp_name, log_model
        self.tags, self.params = tags, params
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
        self.mlflow.set_tags(redacted(dict(self.tags or {})))
        self.mlflow.log_params(redacted(dict(self.params or {})))

    def log(self, runner: Run) -> None:
        tags = self.get_loggable_tags(runner)
        self.mlflow.log_metrics(tags, step=self.get_iter(runner))

    def close(self, runner: Run, *, failed: bool) -> None:
        """End the run, unless it was the user's before training."""
        if self.log_model and runner.rank == 0 and not failed:
            needs = [f"torch=={torch.__version__}"]  # else mlflow looks for them
            self.mlflow.pytorch.log_model(
                runner.model, "models", pip_requirements=needs
            )
        if self._started:
            self.mlflow.end_run("FAILED" if failed else "FINISHED")
            self._started = False


def _checked(init_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(init_kwargs, (Mapping, type(None))):
        raise ConfigTypeError.of("init_kwargs", f"must be a dict, got {init_kwargs!r}")
    kwargs = dict(init_kwargs or {})
    for name in kwargs:
        if name not in INIT:
            raise ConfigError.of(
                "init_kwargs", f"takes no {name!r} from a config; {nearest(name, INIT)}"
            )
    if not isinstance(kwargs.get("config", {}), Mapping):  # else the path of a file
        raise ConfigTypeError.of("init_kwargs", "takes a dict as `config`")
    return kwargs


def _package(module: str, user: LoggerHook, extra: str) -> Any:
    """The module `module`, which the hook `user` needs.

    Raises:
        ConfigError: it is not installed (with the command that does it), or broken.
    """
    name = type(user).__name__
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        raise ConfigError(
            f"{name} needs the package {missing}: pip install 'devrun[{extra}]'"
        ) from error
    except ImportError as error:
        raise ConfigError(f"{name} cannot import {module}: {joined(error)}") from error
