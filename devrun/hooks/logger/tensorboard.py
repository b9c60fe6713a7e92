"""`TensorboardLoggerHook`: event files that TensorBoard reads."""

from __future__ import annotations

import os
from typing import Any

from devrun.checkpoint.storage import check_possible, check_writable
from devrun.errors import ConfigError
from devrun.files import own_folder
from devrun.hooks.logger.hook import LoggerHook, import_extra
from devrun.redact import redact
from devrun.registry import HOOKS
from devrun.run import Run


@HOOKS.register_module()
class TensorboardLoggerHook(LoggerHook):
    """Writes scalars and texts under `train/`, `val/`, `learning_rate`, `momentum`.

    The horizontal axis is the number of completed updates.

    Args:
        log_dir: where the event files go; `<work_dir>/tf_logs` if not given.

    Raises:
        ConfigError: tensorboard is not installed.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        interval: int = 10,
        ignore_last: bool = True,
        reset_flag: bool = False,
        by_epoch: bool = True,
    ) -> None:
        super().__init__(interval, ignore_last, reset_flag, by_epoch)
        module = "torch.utils.tensorboard"
        tools = import_extra(module, "TensorboardLoggerHook", "tensorboard")
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

    def after_run(self, runner: Run) -> None:
        super().after_run(runner)
        self._close()

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None
