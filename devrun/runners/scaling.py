"""`auto_scale_lr`: the learning rate of a config for the batch of this run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from devrun.construct import where
from devrun.errors import ConfigError

logger = logging.getLogger("devrun")


def scale_lr(
    cfg: Mapping[str, Any], optimizer: Any, loader: Any, copies: int = 1
) -> None:
    """Multiply each `lr` by samples an update / `base_batch_size`, if `enable` is set.

    The linear rule of Goyal et al., https://arxiv.org/abs/1706.02677, section 2.1; the
    key and its meaning are MMDetection's.

    Args:
        optimizer: or a dict of several.
        loader: of the training; its `batch_size` is of one process.
        copies: batches of it in an update, over all processes.

    Raises:
        ConfigError: `enable` without `base_batch_size`, or a loader without a size.
    """
    wish = cfg.get("auto_scale_lr") or {}
    if not wish.get("enable"):
        return
    base, size = wish.get("base_batch_size"), getattr(loader, "batch_size", None)
    if base is None or size is None:
        raise ConfigError(
            "auto_scale_lr needs base_batch_size, the samples of an update that lr is "
            "for, and data whose batches have one size",
            place=where(cfg, "auto_scale_lr"),
        )
    samples = size * copies
    optimizers = optimizer.values() if isinstance(optimizer, dict) else [optimizer]
    for group in (group for one in optimizers for group in one.param_groups):
        group["lr"] *= samples / base
    logger.info(
        "auto_scale_lr: lr times %g, for %d samples an update in place of %d",
        *(samples / base, samples, base),
    )
