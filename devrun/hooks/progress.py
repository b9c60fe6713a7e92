"""`ProgressHook`: a bar by tqdm, where there is a terminal or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from devrun.hooks.base import Hook, Priority
from devrun.registry import HOOKS
from devrun.run import Run

REFRESH = 0.25
"""Seconds between two drawings of a bar."""


class Bar(tqdm):
    monitor_interval = 0  # no thread of its own: it is drawn by updates


@HOOKS.register_module()
class ProgressHook(Hook):
    """Shows how far the run is, its speed, time left, loss and peak memory.

    An evaluation gets a bar of its own below, which is removed at its end. The loss is
    the last average that the loggers took.

    Args:
        bar: True for a bar, False for none, None for one where stderr is a terminal,
            or where a notebook redraws it.
    """

    priority: Any = Priority.LOWEST  # after the loggers took their averages

    def __init__(self, bar: bool | None = None) -> None:
        self.bar = bar
        self._bar: Bar | None = None

    def before_run(self, runner: Run) -> None:
        self._bar = self._new_bar(runner, total=runner.max_iters, initial=runner.iter)

    def after_train_iter(self, runner: Run) -> None:
        # tqdm decides when it draws; what it shows of the run follows the last time
        if self._bar is not None and self._bar.update(runner.iter + 1 - self._bar.n):
            self._describe(self._bar, runner)

    def over(self, runner: Run, batches: Iterable[Any]) -> Iterable[Any]:
        """`batches`, with a bar below that counts them while they are evaluated."""
        below = 0 if self._bar is None else 1
        return self._new_bar(runner, batches, desc="eval", position=below, leave=False)

    def after_run(self, runner: Run) -> None:
        if self._bar is not None:
            self._describe(self._bar, runner)
        self._close()

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        self._close()

    def _new_bar(self, runner: Run, batches: Any = None, **options: Any) -> Bar:
        bar = True if self.bar is None and "ipykernel" in sys.modules else self.bar
        off = runner.rank != 0 or (None if bar is None else not bar)
        return Bar(
            batches, disable=off, dynamic_ncols=True, mininterval=REFRESH, **options
        )

    def _describe(self, bar: Bar, runner: Run) -> None:
        if runner.max_epochs is None:
            bar.set_description(f"epoch {runner.epoch + 1}", refresh=False)
        else:
            epoch = min(runner.epoch + 1, runner.max_epochs)
            bar.set_description(f"epoch {epoch}/{runner.max_epochs}", refresh=False)
        facts = {}
        if "loss" in runner.log_buffer.latest:
            facts["loss"] = f"{runner.log_buffer.latest['loss']:.4f}"
        if (memory := runner.adapter.stats().get("peak_mib")) is not None:
            facts["memory"] = f"{memory:.0f} MiB"
        bar.set_postfix(facts, refresh=False)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def over_evaluation(runner: Run, batches: Iterable[Any]) -> Iterable[Any]:
    """`batches` as they are, or with the bar of the runner's `ProgressHook`."""
    for hook in runner.hooks:
        if isinstance(hook, ProgressHook):
            return hook.over(runner, batches)
    return batches
