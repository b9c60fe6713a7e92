"""Hooks of MMDetection, most of them YOLOX's, on devrun's runner.

Ge et al., YOLOX: Exceeding YOLO Series in 2021, https://arxiv.org/abs/2107.08430.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from devrun.config.numbers import whole_number
from devrun.errors import ConfigError
from devrun.hooks import ema
from devrun.hooks.base import Hook
from devrun.hooks.schedules.policies import (
    CosineAnnealingLrUpdaterHook,
    annealing_cos,
)
from devrun.run import Run


@dataclass(eq=False)
class YOLOXLrUpdaterHook(CosineAnnealingLrUpdaterHook):
    """Half a cosine from the end of the warm-up to `num_last_epochs` before the end.

    In these last epochs the rate is the minimum. The warm-up grows with the square
    of the updates done. Other arguments are those of the cosine; `by_epoch` must be
    False, as it is in YOLOX's configs.
    """

    num_last_epochs: int = field(kw_only=True)

    def __post_init__(self) -> None:
        whole_number("num_last_epochs", self.num_last_epochs, 0)
        if self.by_epoch:
            raise ConfigError.of("by_epoch", "must be False with the policy YOLOX")
        super().__post_init__()

    def get_lr(self, runner: Run, base_lr: float) -> float:
        done, total = self.progress(runner)
        warm = self._resolve_warmup(runner)
        last = len(runner.data_loader) * self.num_last_epochs
        if done + 1 >= total - last:
            return self.end(base_lr)
        share = (done + 1 - warm) / (total - warm - last)
        return annealing_cos(base_lr, self.end(base_lr), share)

    def get_warmup_lr(self, cur_iters: int) -> Any:
        share = (cur_iters + 1) / (self.warmup_iters or 1)
        factor = float(self.warmup_ratio) * share**2
        return _times(self.base_lr, factor)


def _times(rates: Any, factor: float) -> Any:
    if isinstance(rates, dict):
        return {name: _times(row, factor) for name, row in rates.items()}
    return [rate * factor for rate in rates]


class YOLOXModeSwitchHook(Hook):
    """Trains without mosaic and mixup, and with an L1 loss, for the last epochs.

    As in MMDetection, a run of no more than `num_last_epochs` has no such end. A
    resumed run is where one never stopped would be.

    Args:
        num_last_epochs: how many.
        skip_type_keys: transforms of the MultiImageMixDataset that are left out.
    """

    def __init__(
        self,
        num_last_epochs: int = 15,
        skip_type_keys: Sequence[str] = ("Mosaic", "RandomAffine", "MixUp"),
    ) -> None:
        self.num_last_epochs = whole_number("num_last_epochs", num_last_epochs, 0)
        self.skip_type_keys = tuple(skip_type_keys)
        self.switched = False

    def before_train_epoch(self, runner: Run) -> None:
        first = (runner.max_epochs or 0) - self.num_last_epochs - 1
        if self.switched or not 0 <= first <= runner.epoch:
            return
        self.switched = True
        loader: Any = runner.data_loader
        skip = getattr(loader.dataset, "update_skip_type_keys", None)
        head: Any = getattr(runner.model, "bbox_head", None)
        if skip is None or head is None:
            raise ConfigError(
                "YOLOXModeSwitchHook needs a MultiImageMixDataset as data.train and a "
                f"model with a bbox_head, got {type(loader.dataset).__name__} and "
                f"{type(runner.model).__name__}"
            )
        skip(self.skip_type_keys)
        loader.close()  # workers that outlive epochs have the data set as it was
        head.use_l1 = True
        runner.logger.info("trained from here without mosaic and mixup, and with L1")


class _AsInMMDetection(ema.EMAHook):
    """Averages after every `interval`-th update, and buffers too unless told not to."""

    def __init__(
        self,
        momentum: float,
        interval: int,
        skip_buffers: bool,
        resume_from: str | None,
    ) -> None:
        buffers = "copy" if skip_buffers else "average"
        super().__init__(momentum, interval, resume_from=resume_from, buffers=buffers)

    def weight_after(self, done: int) -> float | None:
        return None if (done + 1) % self.interval else self.weight(done)

    @abstractmethod
    def weight(self, done: int) -> float:
        """`m` of that average."""


class ExpMomentumEMAHook(_AsInMMDetection):
    """An average of weights and buffers whose momentum falls to `momentum`.

    After the update that `n` came before it is
    `(1 - momentum) * exp(-(1 + n) / total_iter) + momentum`.

    Args:
        total_iter: how slowly it falls.
        momentum: where it falls to.
        interval: updates from one averaging to the next.
        skip_buffers: leave the model's own buffers in use.
        resume_from: checkpoint to resume the whole run from when it starts.
    """

    def __init__(
        self,
        total_iter: int = 2000,
        momentum: float = 0.0002,
        interval: int = 1,
        skip_buffers: bool = False,
        resume_from: str | None = None,
    ) -> None:
        super().__init__(momentum, interval, skip_buffers, resume_from)
        self.total_iter = whole_number("total_iter", total_iter)
        self.momentum = momentum

    def weight(self, done: int) -> float:
        falling = math.exp(-(1 + done) / self.total_iter)
        return (1 - self.momentum) * falling + self.momentum


class LinearMomentumEMAHook(_AsInMMDetection):
    """An average of weights and buffers whose momentum rises and then stays.

    After the update that `n` came before it is `(1 + n) / (warm_up + n)`, and at most
    `momentum ** interval`.

    Args:
        warm_up: how slowly it rises.
        momentum: as in the formula; the other arguments are ExpMomentumEMAHook's.
    """

    def __init__(
        self,
        warm_up: int = 100,
        momentum: float = 0.0002,
        interval: int = 1,
        skip_buffers: bool = False,
        resume_from: str | None = None,
    ) -> None:
        super().__init__(momentum, interval, skip_buffers, resume_from)
        self.warm_up = warm_up
        self.momentum = momentum**interval

    def weight(self, done: int) -> float:
        return min(self.momentum, (1 + done) / (self.warm_up + done))
