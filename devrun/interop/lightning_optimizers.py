"""From what `configure_optimizers` returns to an optimizer and hooks of its schedulers.

    optimizer
    [optimizer], [scheduler or its dict, ...]
    {"optimizer": optimizer, "lr_scheduler": scheduler or its dict}

The dict of a scheduler has `scheduler`, and may have `interval` (`epoch` or `step`),
`frequency`, `monitor`, `strict` and `name`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from devrun.config.numbers import whole_number
from devrun.errors import ConfigError, ConfigTypeError, UnsupportedFeatureError, nearest
from devrun.hooks.schedules.torch_scheduler import (
    PlateauSchedulerHook,
    TorchSchedulerHook,
)

KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "name")


def configured(model: Any) -> tuple[Optimizer, list[TorchSchedulerHook]]:
    """The optimizer of a LightningModule, and a hook for each of its schedulers.

    Raises:
        ConfigError: it gave none, or something else.
        UnsupportedFeatureError: it gave several, which only a model that optimizes by
            itself can use.
    """
    name = f"configure_optimizers of {type(model).__name__}"
    optimizers, schedulers = _parts(model.configure_optimizers())
    if len(optimizers) > 1:
        raise UnsupportedFeatureError(
            f"{name} gives {len(optimizers)} optimizers, which takes manual "
            "optimization: give one with several parameter groups"
        )
    if not optimizers or not isinstance(optimizers[0], Optimizer):
        got = type(optimizers[0]).__name__ if optimizers else "nothing"
        raise ConfigTypeError(
            f"{name} must give a torch.optim.Optimizer, alone or with lr schedulers, "
            f"got {got}"
        )
    return optimizers[0], [_hook(entry, name) for entry in schedulers]


def _parts(given: Any) -> tuple[list[Any], list[Any]]:
    """Optimizers and schedulers, each as a list."""
    if isinstance(given, Mapping):
        scheduler = given.get("lr_scheduler")
        return _listed(given.get("optimizer")), _listed(scheduler)
    if not isinstance(given, (list, tuple)):
        return _listed(given), []
    if len(given) == 2 and all(isinstance(part, (list, tuple)) for part in given):
        return list(given[0]), list(given[1])
    if all(isinstance(part, Mapping) for part in given):
        both = [_parts(part) for part in given]
        return [o for os, _ in both for o in os], [s for _, ss in both for s in ss]
    return list(given), []


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _hook(entry: Any, name: str) -> TorchSchedulerHook:
    facts = dict(entry) if isinstance(entry, Mapping) else {"scheduler": entry}
    for key in facts:
        if key not in KEYS:
            raise ConfigError(
                f"{name}: the dict of an lr scheduler has {key!r}; {nearest(key, KEYS)}"
            )
    scheduler, interval = facts.get("scheduler"), facts.get("interval", "epoch")
    if interval not in ("epoch", "step"):
        raise ConfigError(
            f"{name}: interval of an lr scheduler must be one of epoch, step, got "
            f"{interval!r}"
        )
    frequency = whole_number(f"{name}: frequency", facts.get("frequency", 1))
    if not isinstance(scheduler, (LRScheduler, ReduceLROnPlateau)):
        raise ConfigTypeError(
            f"{name}: an lr scheduler must be one of torch.optim.lr_scheduler, got "
            f"{type(scheduler).__name__}"
        )
    by_epoch = interval == "epoch"
    if not isinstance(scheduler, ReduceLROnPlateau):
        return TorchSchedulerHook(scheduler, by_epoch, frequency=frequency)
    monitor = facts.get("monitor")
    if not isinstance(monitor, str) or frequency != 1:
        raise ConfigError(
            f"{name}: ReduceLROnPlateau needs `monitor`, the name of a value that "
            "validation_step logs, and no frequency: it looks after each evaluation"
        )
    return PlateauSchedulerHook(monitor, by_epoch, scheduler)
