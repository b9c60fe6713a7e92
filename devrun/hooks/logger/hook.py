"""`LoggerHook`: when averages are taken and a record is logged; the text log.

Stages, as in MMCV: each epoch starts with an empty buffer; a training iteration that
hits the interval is averaged over the last `interval` iterations; whatever another
hook (evaluation) put into `log_buffer.output` with `ready` set is logged as well; a
val epoch is averaged as a whole. In a loop without epochs, the val iterations of a
workflow phase are kept apart from the training values and logged as one record.

Averages are taken by every rank (they exchange them), `log` runs on rank 0 only.
"""

from __future__ import annotations

import datetime
import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from devrun.dist import weighted_means
from devrun.hooks.base import Hook, Priority
from devrun.log.jsonlines import JsonLines
from devrun.registry import HOOKS
from devrun.run import Run
from devrun.text import escape

THROUGHPUT = "samples_per_sec"
TIMES = ("time", "data_time", "wait_time", "copy_time", "compute_time")
"""Times of an update; loggers of curves leave them to the text log."""
_FIELDS = ("mode", "epoch", "iter", "step", "lr", "memory")
"""What the hook itself puts into a record; a log value of that name gets a `_`."""
_NOT_LISTED = (*_FIELDS, *TIMES, THROUGHPUT)


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

    def close(self, runner: Run, *, failed: bool) -> None:
        """Let go of what is written to, at the end of a run or when it fails."""

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
        """`train` for averages of training iterations, else `val`."""
        if self._record[0] is not None:
            return self._record[0]
        if runner.mode == "val":
            return "val"
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
        state = runner.state
        done = (state.inner_iter if self.by_epoch else state.iter) + 1
        if (self.interval > 0 and done % self.interval == 0) or (
            not self.ignore_last and self.end_of_epoch(runner)
        ):
            average_over_ranks(runner, self.interval)
        if runner.log_buffer.ready:
            self.log_now(runner, step=state.iter + 1)

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
        self.close(runner, failed=False)

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self.close(runner, failed=True)

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


@HOOKS.register_module()
class TextLoggerHook(LoggerHook):
    """Logs lines in MMCV's format and appends `<work_dir>/<timestamp>.log.json`::

        Epoch [1][10/16]  lr: 1.000e-01, eta: 0:00:01, time: 0.069, data_time: 0.012,
                          memory: 512, loss: 2.5837, samples_per_sec: 463.8
        Iter [10/100]     lr: ... (the same)
        Epoch(val) [1][5] accuracy: 0.9000
        Iter(val) [5]     accuracy: 0.9000        (5 = batches evaluated)

    each on one line with a tab after the brackets. What MMCV does not have comes
    last: the throughput over all ranks. `lr` is that of the first parameter group.
    `memory` is the peak in MiB, on devices that tell. In the file, the first line is
    the run's `meta`; `step` counts completed updates, which `iter` of a val record
    does not.

    Args:
        interval_exp_name: iterations between two lines with `meta["exp_name"]`.
    """

    def __init__(
        self,
        by_epoch: bool = True,
        interval: int = 10,
        ignore_last: bool = True,
        reset_flag: bool = False,
        interval_exp_name: int = 1000,
    ) -> None:
        super().__init__(interval, ignore_last, reset_flag, by_epoch)
        self.interval_exp_name = interval_exp_name
        self.json_log_path: str | None = None
        self._json: JsonLines | None = None
        self._start = self._timed_until = 0
        self._seconds = 0.0

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        self._start = self._timed_until = runner.iter
        self._seconds = 0.0
        if runner.work_dir is None or runner.rank != 0:
            return
        name = f"{runner.timestamp}.log.json"
        self.json_log_path = os.path.join(runner.work_dir, name)
        self._json = JsonLines(self.json_log_path)
        if runner.meta is not None:
            self._json.write(runner.meta)

    def log(self, runner: Run) -> dict[str, Any]:
        """Write one record; it is returned."""
        record = self._make_record(runner)
        self._log_exp_name(runner)
        head = self._train_head if record["mode"] == "train" else self._val_head
        items = [
            f"{escape(name)}: {_shown(value)}"
            for name, value in record.items()
            if name not in _NOT_LISTED
        ]
        if record["mode"] == "train" and THROUGHPUT in record:
            items.append(f"{THROUGHPUT}: {record[THROUGHPUT]:.1f}")
        runner.logger.info("%s%s", head(record, runner), ", ".join(items))
        if self._json is not None:
            self._json.write(record)
        return record

    def close(self, runner: Run, *, failed: bool) -> None:
        if self._json is not None:
            self._json.close()
            self._json = None

    def _make_record(self, runner: Run) -> dict[str, Any]:
        output = runner.log_buffer.output
        mode, step = self.get_mode(runner), self.get_iter(runner)
        if "eval_iter_num" in output:
            count = output["eval_iter_num"]
        elif runner.mode == "val":
            count = runner.inner_iter + 1
        else:
            count = self.get_iter(runner, inner_iter=True)
        record = {
            "mode": mode,
            "epoch": self.get_epoch(runner),
            "iter": count,
            "step": step,
        }
        if runner.optimizer is not None:
            rates = runner.current_lr()
            several = isinstance(rates, dict)
            record["lr"] = {k: v[0] for k, v in rates.items()} if several else rates[0]
        if mode == "train" and "time" in output:  # as in MMCV
            memory = runner.adapter.stats().get("peak_mib")
            if memory is not None:
                record["memory"] = int(memory)
        for name, value in output.items():
            if name != "eval_iter_num":
                key = f"{name}_" if name in _FIELDS else str(name)
                record[key] = plain_number(value)
        return record

    def _train_head(self, record: Mapping[str, Any], runner: Run) -> str:
        if self.by_epoch:
            place = (
                f"Epoch [{record['epoch']}][{record['iter']}/{len(runner.data_loader)}]"
            )
        else:
            place = f"Iter [{record['iter']}/{runner.max_iters}]"
        parts = []
        if isinstance(record.get("lr"), dict):
            rates = record["lr"].items()
            parts.append(" ".join(f"lr_{escape(name)}: {lr:.3e}" for name, lr in rates))
        elif "lr" in record:
            parts.append(f"lr: {record['lr']:.3e}")
        if "time" in record:
            eta = self._eta(record["time"], runner)
            if eta is not None:
                parts.append(f"eta: {eta}")
            parts.append(f"time: {record['time']:.3f}")
            parts.append(f"data_time: {record.get('data_time', 0.0):.3f}")
        if "memory" in record:
            parts.append(f"memory: {record['memory']}")
        return f"{place}\t" + "".join(f"{part}, " for part in parts)

    def _val_head(self, record: Mapping[str, Any], runner: Run) -> str:
        if self.by_epoch:
            return f"Epoch(val) [{record['epoch']}][{record['iter']}]\t"
        return f"Iter(val) [{record['iter']}]\t"

    def _eta(self, seconds: float, runner: Run) -> datetime.timedelta | None:
        """Time left at the mean speed of the iterations logged so far."""
        done = runner.iter + 1
        self._seconds += seconds * (done - self._timed_until)
        self._timed_until = done
        if runner.max_iters is None:
            return None
        left = self._seconds / max(done - self._start, 1) * (runner.max_iters - done)
        return datetime.timedelta(seconds=int(left))

    def _log_exp_name(self, runner: Run) -> None:
        if runner.meta and "exp_name" in runner.meta:
            at_end = self.by_epoch and self.end_of_epoch(runner)
            if at_end or self.every_n_iters(runner, self.interval_exp_name):
                runner.logger.info("Exp name: %s", escape(runner.meta["exp_name"]))


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else escape(value)
