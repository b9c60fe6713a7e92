"""A moving average of a model's state in one kernel."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection
from typing import Any

from torch import nn

from habana_frameworks.torch.hpex.optimizers.common import fused

__all__ = ["FusedEMA"]


class FusedEMA:
    """Keeps `ema`, a copy of the model whose whole state is averaged.

    The decay ramps: `decay * (1 - exp(-updates / 2000))`.
    """

    def __init__(
        self, model: nn.Module, decay: float = 0.9999, updates: float = 0
    ) -> None:
        if decay < 0.0:
            raise ValueError(f"Invalid decay value: {decay}")
        inner: Any = model.module if _is_parallel(model) else model
        self.ema: nn.Module = copy.deepcopy(inner).eval()
        self.decay = lambda n: decay * (1 - math.exp(-n / 2000))
        self.updates = updates
        self.updated_ema = list(self.ema.state_dict().values())

    def update(self, model: nn.Module) -> None:
        """Take one step towards `model`'s state."""
        self.updates += 1
        decay = self.decay(self.updates)
        with fused():
            sources = model.state_dict().values()
            for average, value in zip(self.updated_ema, sources, strict=True):
                if average.is_floating_point():
                    average.mul_(decay).add_(value, alpha=1 - decay)

    def update_attr(
        self,
        model: nn.Module,
        include: Collection[str] = (),
        exclude: Collection[str] = ("process_group", "reducer"),
    ) -> None:
        """Copy the model's plain attributes."""
        for name, value in model.__dict__.items():
            wanted = not include or name in include
            if wanted and not name.startswith("_") and name not in exclude:
                setattr(self.ema, name, value)


def _is_parallel(model: nn.Module) -> bool:
    return isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
