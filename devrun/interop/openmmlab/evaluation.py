"""`EvalHook` with what MMDetection adds to MMCV's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devrun.config.numbers import whole_number
from devrun.errors import ConfigTypeError
from devrun.hooks.evaluation import EvalHook as _EvalHook
from devrun.run import Run


class EvalHook(_EvalHook):
    """devrun's, whose interval may change during the run.

    Args:
        dynamic_intervals: pairs of MMDetection's (from, interval): another `interval`
            from that epoch (or iteration) on, counted from 1.
    """

    def __init__(
        self,
        dataloader: Any,
        *,
        dynamic_intervals: Sequence[tuple[int, int]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataloader, **options)
        self.intervals = [(1, self.interval)]
        for pair in dynamic_intervals or ():
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise ConfigTypeError.of(
                    "dynamic_intervals", f"takes pairs (from, interval), got {pair!r}"
                )
            first, interval = pair
            whole_number("dynamic_intervals", max(first, 1))
            whole_number("dynamic_intervals", interval)
            self.intervals.append((first, interval))

    def _should_evaluate(self, runner: Run) -> bool:
        done = (runner.epoch if self.by_epoch else runner.iter) + 1
        self.interval = [every for first, every in self.intervals if first <= done][-1]
        return super()._should_evaluate(runner)
