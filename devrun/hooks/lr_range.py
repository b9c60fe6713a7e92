"""`LrRangeHook`: a learning rate that rises until the loss explodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from devrun.dist import weighted_means
from devrun.errors import ConfigError
from devrun.hooks.base import Hook
from devrun.run import Run

SMOOTHING = 0.9
"""Weight of the past in the smoothed loss."""
EXPLODED = 4.0
"""Times the smallest smoothed loss, at which the test ends."""
SKIPPED = 5
"""First points that no suggestion is taken from: their mean is of few losses."""
_FLAT = 1e-6
"""Of the first loss: a slope that is rounding."""


@dataclass
class LrCurve:
    """Learning rates with the loss of the update before which each was set."""

    lr: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    smoothed: list[float] = field(default_factory=list)
    """Exponential mean of the losses, corrected for its beginning at 0 as in Adam."""

    def add(self, lr: float, loss: float) -> None:
        """One more update."""
        last = self.smoothed[-1] * (1 - SMOOTHING ** len(self.lr)) if self.lr else 0.0
        mean = SMOOTHING * last + (1 - SMOOTHING) * loss
        self.lr.append(lr)
        self.loss.append(loss)
        self.smoothed.append(mean / (1 - SMOOTHING ** len(self.lr)))

    @property
    def exploded(self) -> bool:
        """Whether the last loss is not finite, or far above the smallest."""
        last = self.smoothed[-1]
        least = min(self.smoothed)
        return not math.isfinite(last) or (
            len(self.lr) > 2 * SKIPPED and last > EXPLODED * max(least, 1e-12)
        )

    @property
    def suggestion(self) -> float | None:
        """Where the smoothed loss falls most steeply over the logarithm of the rate.

        None where it falls nowhere. The slope is measured over three points.
        """
        steepest, found = -_FLAT * abs(self.smoothed[0]), None
        for at in range(SKIPPED, len(self.lr) - 1):
            before, after = self.smoothed[at - 1], self.smoothed[at + 1]
            width = math.log(self.lr[at + 1] / self.lr[at - 1])
            slope = (after - before) / width
            if math.isfinite(slope) and slope < steepest:
                steepest, found = slope, self.lr[at]
        return found


class LrRangeHook(Hook):
    """The range test of Smith 2015, "Cyclical Learning Rates for Training Neural
    Networks" (arXiv:1506.01186, section 3.3), with a rate that rises exponentially.

    Groups keep the ratios that their rates have. The run is asked to stop when the
    loss has exploded, or after `steps` updates.

    Args:
        start, end: the first and the last rate of the group with the largest.
        steps: updates.
        at_end: called once when the last update is done.
    """

    priority: Any = "VERY_HIGH"

    def __init__(
        self,
        start: float = 1e-7,
        end: float = 10.0,
        steps: int = 100,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.start, self.end, self.steps = start, end, steps
        self.at_end = at_end
        self.curve = LrCurve()
        self._ratios: list[float] = []

    def before_run(self, runner: Run) -> None:
        rates = [float(group["lr"]) for group in _groups(runner)]
        largest = max(rates, default=0.0)
        if not largest > 0:
            raise ConfigError("the optimizer has no learning rate above 0 to scale")
        self._ratios = [rate / largest for rate in rates]

    def before_train_iter(self, runner: Run) -> None:
        progress = len(self.curve.lr) / max(self.steps - 1, 1)
        self._lr = self.start * (self.end / self.start) ** progress
        for group, ratio in zip(_groups(runner), self._ratios, strict=True):
            group["lr"] = self._lr * ratio

    def after_train_iter(self, runner: Run) -> None:
        loss = runner.outputs.get("loss")
        if loss is None:
            raise ConfigError("the training step gave no loss to judge the rates by")
        self.curve.add(self._lr, weighted_means({"loss": (float(loss), 1.0)})["loss"])
        if self.curve.exploded or len(self.curve.lr) >= self.steps:
            self.at_end()
            runner.request_stop("the range of learning rates is tried")


def _groups(runner: Run) -> Iterator[dict[str, Any]]:
    several = isinstance(runner.optimizer, dict)
    for one in runner.optimizer.values() if several else [runner.optimizer]:
        yield from one.param_groups
