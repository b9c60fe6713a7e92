"""`ProgressHook`: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter
from typing import Any, TextIO

from tqdm import tqdm

from devrun.config.numbers import whole_number
from devrun.hooks.base import Hook, Priority
from devrun.hooks.logger.text import TextLoggerHook
from devrun.registry import HOOKS
from devrun.run import Run


class _Bar(tqdm):
    """One that asks for its texts only when it is drawn, which tqdm decides."""

    monitor_interval = 0  # no thread of its own: it is drawn by updates
    texts: Callable[[], tuple[str, str]] | None = None

    def display(self, *args: Any, **kwargs: Any) -> Any:
        if self.texts is not None:
            self.desc, self.postfix = self.texts()
        return super().display(*args, **kwargs)


@HOOKS.register_module()
class ProgressHook(Hook):
    """Shows how far the run is, its speed, time left, loss and peak memory.

    An evaluation gets a bar of its own below, which is removed at its end.

    The loss is the last average that the loggers took; without loggers it is read
    every `interval` iterations. Showing never makes the device wait more often.

    Args:
        bar: True for a bar, False for plain lines, None for a bar where `stream` is a
            terminal. Plain lines come every `interval` iterations through the
            runner's logger; none while a TextLoggerHook writes its own.
        interval: see above.
        refresh: seconds between two drawings of the bar.
        stream: where the bar is drawn; `sys.stderr` if not given.
    """

    priority: Any = Priority.LOWEST  # after the loggers took their averages

    def __init__(
        self,
        bar: bool | None = None,
        interval: int = 50,
        refresh: float = 0.25,
        stream: TextIO | None = None,
    ) -> None:
        self.bar = bar
        self.interval = whole_number("interval", interval)
        self.refresh = refresh
        self.stream = stream
        self._bar: _Bar | None = None
        self._below: _Bar | None = None
        self._began, self._first = 0.0, 0
        self._loss: float | None = None
        self._active = False

    def get_triggered_stages(self) -> list[str]:
        if self._began and not self._active:  # another rank, or other lines are there
            return ["before_run"]
        return super().get_triggered_stages()

    def before_run(self, runner: Run) -> None:
        bar = self._wants_bar()
        others = any(isinstance(hook, TextLoggerHook) for hook in runner.hooks)
        self._active = runner.rank == 0 and (bar or not others)
        self._began, self._first = perf_counter(), runner.iter
        if self._active and bar:
            self._bar = self._new_bar(runner.max_iters, initial=runner.iter)
            self._bar.texts = partial(self._texts, runner)

    def after_train_iter(self, runner: Run) -> None:
        done = runner.iter + 1
        if done % self.interval == 0:
            self._read_loss(runner)
            if self._bar is None and self._active:
                self._write_line(runner, done)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def before_val_epoch(self, runner: Run) -> None:
        self._open_below(runner, runner.data_loader, "val")

    def after_val_iter(self, runner: Run) -> None:
        if self._below is not None:
            self._below.update()

    def after_val_epoch(self, runner: Run) -> None:
        self._close_below()

    def over(self, runner: Run, batches: Iterable[Any]) -> Iterator[Any]:
        """`batches`, with a bar that counts them while they are evaluated."""
        self._open_below(runner, batches, "eval")
        try:
            for batch in batches:
                yield batch
                self.after_val_iter(runner)
        finally:
            self._close_below()

    def after_run(self, runner: Run) -> None:
        if self._bar is not None:
            self._bar.n = runner.iter
        self._close()

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self._close()

    def _wants_bar(self) -> bool:
        stream = self.stream if self.stream is not None else sys.stderr
        return stream.isatty() if self.bar is None else self.bar

    def _new_bar(self, total: int | None, **options: Any) -> _Bar:
        return _Bar(
            total=total,
            file=self.stream if self.stream is not None else sys.stderr,
            dynamic_ncols=True,
            mininterval=self.refresh,
            miniters=1,
            unit="it",
            **options,
        )

    def _open_below(self, runner: Run, batches: Any, what: str) -> None:
        self._close_below()
        if runner.rank != 0 or not self._wants_bar():
            return
        try:
            total = len(batches)
        except TypeError:
            total = None
        below = 0 if self._bar is None else 1
        self._below = self._new_bar(total, desc=what, position=below, leave=False)

    def _close_below(self) -> None:
        if self._below is not None:
            self._below.close()
            self._below = None

    def _close(self) -> None:
        self._close_below()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _read_loss(self, runner: Run) -> None:
        latest = runner.log_buffer.latest
        loss: Any = latest.get("loss")
        if loss is None and not latest:
            loss = runner.outputs.get("loss")
        if loss is not None:
            self._loss = float(loss)

    def _texts(self, runner: Run) -> tuple[str, str]:
        """Before and behind the bar."""
        epoch = f"epoch {min(runner.epoch + 1, runner.max_epochs or sys.maxsize)}"
        if runner.max_epochs is not None:
            epoch += f"/{runner.max_epochs}"
        latest = runner.log_buffer.latest
        if runner.mode == "train" and "loss" in latest:
            self._loss = latest["loss"]
        return f"{epoch}: ", ", ".join(self._facts(runner))

    def _facts(self, runner: Run) -> list[str]:
        facts = [] if self._loss is None else [f"loss {self._loss:.4f}"]
        memory = runner.adapter.memory_stats().get("peak_mib")
        return facts if memory is None else [*facts, f"memory {memory:.0f} MiB"]

    def _write_line(self, runner: Run, done: int) -> None:
        speed = (done - self._first) / max(perf_counter() - self._began, 1e-9)
        line = [f"{done} iterations"]
        if runner.max_iters:
            left = datetime.timedelta(seconds=int((runner.max_iters - done) / speed))
            share = 100 * done / runner.max_iters
            line = [
                f"{done}/{runner.max_iters} iterations ({share:.0f}%)",
                f"eta {left}",
            ]
        line += [f"{speed:.1f} it/s", *self._facts(runner)]
        runner.logger.info("progress: %s", ", ".join(line))


def over_evaluation(runner: Run, batches: Iterable[Any]) -> Iterable[Any]:
    """`batches` as they are, or with the bar of the runner's `ProgressHook`."""
    for hook in runner.hooks:
        if isinstance(hook, ProgressHook):
            return hook.over(runner, batches)
    return batches
