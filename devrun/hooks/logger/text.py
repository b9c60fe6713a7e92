"""`TextLoggerHook`: MMCV's lines for people, and one JSON object a record."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from typing import Any

from devrun.hooks.logger.hook import THROUGHPUT, TIMES, LoggerHook, plain_number
from devrun.log.jsonlines import JsonLines
from devrun.registry import HOOKS
from devrun.run import Run
from devrun.text import escape

_FIELDS = ("mode", "epoch", "iter", "step", "lr", "memory")
"""What the hook itself puts into a record; a log value of that name gets a `_`."""
_NOT_LISTED = (*_FIELDS, *TIMES, THROUGHPUT)


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

    def after_run(self, runner: Run) -> None:
        super().after_run(runner)
        self._close()

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
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
