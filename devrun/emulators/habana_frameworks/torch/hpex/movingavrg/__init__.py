"""A moving average of a model's state in one kernel."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from habana_frameworks._emulation.plans import Kernel
from habana_frameworks._emulation.support import paired
from habana_frameworks.torch.hpex.optimizers.common import kernel

KERNEL = Kernel("hpu::fused_ema")
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
        pairs = paired(self.updated_ema, list(model.state_dict().values()))
        floating = [(a, v) for a, v in pairs if a.is_floating_point()]
        averages, values = [a for a, _ in floating], [v for _, v in floating]
        update = functools.partial(_average, decay=decay)
        kernel(KERNEL, update, [averages, values], [averages])

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


def _average(averages: list[Tensor], values: list[Tensor], *, decay: float) -> None:
    for average, value in zip(averages, values):
        average.mul_(decay).add_(value, alpha=1 - decay)


def _is_parallel(model: nn.Module) -> bool:
    return isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
