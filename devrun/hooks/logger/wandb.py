"""`WandbLoggerHook`: records for Weights & Biases."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devrun.config.redact import redacted
from devrun.errors import ConfigError, ConfigTypeError, nearest
from devrun.files import own_folder
from devrun.hooks.logger.hook import LoggerHook, import_extra
from devrun.registry import HOOKS
from devrun.run import Run

INIT = (
    "entity", "project", "name", "notes", "tags", "group", "job_type", "id",
    "resume", "mode", "dir", "config", "allow_val_change",
)  # fmt: skip
"""Arguments of `wandb.init` that a config may give: none of them runs code, or
uploads files that the run did not write."""


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
        log_artifact: whether the logs of this run are uploaded at the end.
        define_metric_cfg: metric name -> `summary` of `wandb.define_metric`.

    Raises:
        ConfigError: wandb is not installed, or an unknown argument of `init_kwargs`.
    """

    def __init__(
        self,
        init_kwargs: Mapping[str, Any] | None = None,
        interval: int = 10,
        ignore_last: bool = True,
        reset_flag: bool = False,
        commit: bool = True,
        by_epoch: bool = True,
        with_step: bool = True,
        log_artifact: bool = True,
        define_metric_cfg: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(interval, ignore_last, reset_flag, by_epoch)
        self.wandb = import_extra("wandb", "WandbLoggerHook", "wandb")
        self.init_kwargs = _checked(init_kwargs)
        self.commit = commit
        self.with_step = with_step
        self.log_artifact = log_artifact
        self.define_metric_cfg = dict(define_metric_cfg or {})
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
        for metric, summary in self.define_metric_cfg.items():
            self.run.define_metric(metric, summary=summary)

    def log(self, runner: Run) -> None:
        tags = self.get_loggable_tags(runner)
        if not tags:
            return
        step = self.get_iter(runner)
        if self.with_step:
            self.run.log(tags, step=step)
        else:
            self.run.log({**tags, "global_step": step}, commit=self.commit)

    def after_run(self, runner: Run) -> None:
        super().after_run(runner)
        if self.run is None:
            return
        if self.log_artifact and runner.work_dir is not None:
            artifact = self.wandb.Artifact(name="artifacts", type="model")
            for path in _own_logs(runner):
                artifact.add_file(str(path))
            self.run.log_artifact(artifact)
        self._finish(0)

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self._finish(1)

    def _finish(self, exit_code: int) -> None:
        if self.run is not None:
            self.run.finish(exit_code=exit_code)
            self.run = None


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


def _own_logs(runner: Run) -> list[Path]:
    """The files in `work_dir` that this run has logged to, and its config.

    No others, whatever they are called: a config may name any folder as `work_dir`.
    """
    work_dir = Path(str(runner.work_dir))
    handlers = [h for h in runner.logger.handlers if isinstance(h, logging.FileHandler)]
    written = [Path(handler.baseFilename) for handler in handlers]
    written += [work_dir / f"{runner.timestamp}.log.json", work_dir / "config.yaml"]
    return [
        path
        for path in written
        if path.parent == work_dir and path.is_file() and not path.is_symlink()
    ]
