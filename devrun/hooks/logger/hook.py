"""`LoggerHook`: when averages are taken and a record is logged.

Stages, as in MMCV: each epoch starts with an empty buffer; a training iteration that
hits the interval is averaged over the last `interval` iterations; whatever another
hook (evaluation) put into `log_buffer.output` with `ready` set is logged as well; a
val epoch is averaged as a whole. In a loop without epochs, the val iterations of a
workflow phase are kept apart from the training values and logged as one record.

Averages are taken by every rank (they exchange them), `log` runs on rank 0 only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from devrun.dist import weighted_means
from devrun.errors import ConfigError
from devrun.hooks.base import Hook, Priority
from devrun.run import Run

THROUGHPUT = "samples_per_sec"
TIMES = ("time", "data_time", "wait_time", "copy_time", "compute_time")
"""Times of an update; loggers of curves leave them to the text log."""


class LoggerHook(Hook, ABC):
    """Base of all loggers; a subclass writes `log(runner)`.

    Args:
        interval: iterations between two records; 0 or less logs no training record.
        ignore_last: whether a shorter rest at the end of an epoch is not logged.
        reset_flag: whether `log_buffer.output` is emptied after this logger; set for
            the last of several loggers when the run starts.
        by_epoch: whether iterations are counted within the epoch.
    """

    priority: Any = Priority.VERY_LOW

    def __init__(
        self,
        interval: int = 10,
        ignore_last: bool = True,
        reset_flag: bool = False,
        by_epoch: bool = True,
    ) -> None:
        if not isinstance(interval, int) or isinstance(interval, bool):
            raise ConfigError.of(
                "interval", f"of a logger must be an int, got {interval!r}"
            )
        self.interval = interval
        self.ignore_last = ignore_last
        self.reset_flag = reset_flag
        self.by_epoch = by_epoch
        self._in_val_epoch = False
        self._val_iters = 0
        self._val_step = 0
        self._record: tuple[str | None, int | None, int | None] = (None, None, None)

    def prepare_dry_run(self) -> bool:
        self.interval = 1  # it has few iterations
        return True

    @abstractmethod
    def log(self, runner: Run) -> Any:
        """Write what is in `runner.log_buffer.output`; called on rank 0 only."""

    @staticmethod
    def is_scalar(
        val: Any, include_np: bool = True, include_torch: bool = True
    ) -> bool:
        """Whether `val` is one number; 0-d arrays and tensors count if included."""
        if isinstance(val, (int, float)):
            return True
        if hasattr(val, "detach"):
            return include_torch and val.numel() == 1
        return include_np and hasattr(val, "dtype") and getattr(val, "size", 0) == 1

    def get_mode(self, runner: Run) -> str:
        """`train` for averages of training iterations, else `val`.

        Raises:
            ConfigError: the runner has not started a phase.
        """
        if self._record[0] is not None:
            return self._record[0]
        if runner.mode == "val":
            return "val"
        if runner.mode != "train":
            raise ConfigError(
                f"runner mode must be 'train' or 'val', got {runner.mode!r}"
            )
        buffer = runner.log_buffer
        averaged = buffer.tag is not None or "time" in buffer.output
        return "train" if averaged else "val"

    def get_epoch(self, runner: Run) -> int:
        """The epoch, from 1, that a record belongs to."""
        if self._record[1] is not None:
            return self._record[1]
        return runner.epoch if runner.mode == "val" else runner.epoch + 1

    def get_iter(self, runner: Run, inner_iter: bool = False) -> int:
        """Completed updates of the run; with `inner_iter`, within the epoch.

        A record of an evaluation has the number of the last update before it, so it
        never takes the number of the next training record.
        """
        if self.by_epoch and inner_iter:
            return runner.inner_iter + 1
        return runner.iter + 1 if self._record[2] is None else self._record[2]

    def get_lr_tags(self, runner: Run) -> dict[str, float]:
        """`learning_rate` of the first group, of each if there are several."""
        return _first_values("learning_rate", runner, runner.current_lr)

    def get_momentum_tags(self, runner: Run) -> dict[str, float]:
        """`momentum` of the first group, of each optimizer if there are several."""
        return _first_values("momentum", runner, runner.current_momentum)

    def get_loggable_tags(
        self,
        runner: Run,
        allow_scalar: bool = True,
        allow_text: bool = False,
        add_mode: bool = True,
        tags_to_skip: tuple[str, ...] = TIMES,
    ) -> dict[str, Any]:
        """`{"train/loss": 0.1, ..., "learning_rate": 0.01, "momentum": 0.9}`."""
        tags: dict[str, Any] = {}
        for name, value in runner.log_buffer.output.items():
            if name in tags_to_skip or name == "eval_iter_num":
                continue
            scalar = self.is_scalar(value)
            if scalar and not allow_scalar:
                continue
            if not scalar and not (isinstance(value, str) and allow_text):
                continue
            tag = f"{self.get_mode(runner)}/{name}" if add_mode else name
            tags[tag] = plain_number(value)
        tags.update(self.get_lr_tags(runner))
        tags.update(self.get_momentum_tags(runner))
        return tags

    def before_run(self, runner: Run) -> None:
        loggers = [hook for hook in runner.hooks if isinstance(hook, LoggerHook)]
        if loggers and loggers[-1] is self:
            self.reset_flag = True
        runner.log_buffer.select("train")
        runner.log_buffer.reserve(self.interval)

    def before_epoch(self, runner: Run) -> None:
        runner.log_buffer.clear()

    def before_val_epoch(self, runner: Run) -> None:
        self._in_val_epoch = True
        self.before_epoch(runner)

    def before_val_iter(self, runner: Run) -> None:
        if not self._in_val_epoch:
            runner.log_buffer.select("val")

    def after_val_iter(self, runner: Run) -> None:
        if not self._in_val_epoch:
            runner.log_buffer.select("train")
            self._val_iters += 1
            self._val_step = runner.iter

    def after_train_iter(self, runner: Run) -> None:
        if self._val_iters:
            self._log_val_phase(runner)
        buffer = runner.log_buffer
        done = (runner.inner_iter if self.by_epoch else runner.iter) + 1
        if (self.interval > 0 and done % self.interval == 0) or (
            not self.ignore_last and self.end_of_epoch(runner)
        ):
            average_over_ranks(runner, self.interval)
        if buffer.ready:
            self.log_now(runner, step=runner.iter + 1)

    def after_train_epoch(self, runner: Run) -> None:
        if runner.log_buffer.ready:
            self.log_now(runner, step=runner.iter)

    def after_val_epoch(self, runner: Run) -> None:
        self._in_val_epoch = False
        average_over_ranks(runner, 0)
        if runner.log_buffer.ready:
            self.log_now(runner, step=runner.iter)

    def after_run(self, runner: Run) -> None:
        if self._val_iters:
            self._log_val_phase(runner)

    def log_now(
        self,
        runner: Run,
        *,
        step: int,
        mode: str | None = None,
        epoch: int | None = None,
    ) -> None:
        """Log what `output` holds, as a record made after `step` updates.

        For hooks that have results at a moment at which loggers are not called.
        `mode` and `epoch` say what the runner's counters do not.
        """
        self._log_as(runner, mode, epoch, step)
        if self.reset_flag:
            runner.log_buffer.clear_output()

    def _log_as(
        self, runner: Run, mode: str | None, epoch: int | None, step: int
    ) -> None:
        self._record = (mode, epoch, step)
        try:
            if runner.rank == 0:
                self.log(runner)
        finally:
            self._record = (None, None, None)

    def _log_val_phase(self, runner: Run) -> None:
        """One record of the val iterations since the last training iteration."""
        buffer = runner.log_buffer
        means = weighted_means(buffer.totals(section="val"))
        count, self._val_iters = self._val_iters, 0
        if self.reset_flag:
            buffer.clear_section("val")
        if not means:
            return
        held, ready = buffer.output, buffer.ready
        buffer.output = OrderedDict(means, eval_iter_num=count)
        try:
            self._log_as(runner, "val", runner.epoch + 1, self._val_step)
        finally:
            buffer.output, buffer.ready = held, ready


def _first_values(tag: str, runner: Run, values: Callable[[], Any]) -> dict[str, float]:
    if runner.optimizer is None:
        return {}
    found = values()
    if isinstance(found, dict):
        return {f"{tag}/{name}": row[0] for name, row in found.items()}
    return {tag: found[0]}


def average_over_ranks(runner: Run, n: int) -> None:
    """Average the buffer over the last `n` iterations and over the ranks.

    Training averages get the throughput of all ranks, in samples per second. Does
    nothing when another hook has just done it.
    """
    buffer = runner.log_buffer
    tag = (n, runner.mode, runner.epoch, runner.iter)
    if buffer.tag == tag:
        return
    if runner.mode == "train":  # the values about to be read wait for it anyway
        runner.state.clock.settle(runner.adapter.synchronize)
    totals = buffer.totals(n)
    runner.adapter.check_finite()  # the host has just waited for the device anyway
    seconds, count = totals.get("time", (0.0, 0))
    if runner.mode == "train" and seconds > 0:
        totals[THROUGHPUT] = (buffer.mean_count(n) * count / seconds, 1)
        parts = runner.state.clock.lap(max(runner.state.updates, runner.iter))
        totals.update({name: (part, 1) for name, part in parts.items()})
    # also by a rank that has no values: the others wait for it
    means = weighted_means(totals)  # ranks may have shares of other sizes
    if THROUGHPUT in means:
        means[THROUGHPUT] *= runner.adapter.data_share[1]
    skipped = runner.adapter.stats().get("skipped_updates")
    if runner.mode == "train" and means and skipped:
        means["skipped_updates"] = skipped
    if means:
        buffer.show(means, tag)


def plain_number(value: Any) -> Any:
    """`value` as int or float if it is a 0-d tensor or array, else as it is."""
    if isinstance(value, (bool, int, float, str)) or not LoggerHook.is_scalar(value):
        return value
    return value.item()
