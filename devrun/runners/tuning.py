"""What a config changes in a model before it is trained."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from devrun.config.tree import where
from devrun.data.collate import softens
from devrun.device_facts import FACTS, DeviceFacts
from devrun.devices.base import DeviceAdapter
from devrun.devices.seeding import rng_of
from devrun.errors import ConfigError, DevrunError, UnsupportedFeatureError
from devrun.models.names import freeze, frozen_norms
from devrun.models.peft import adapt
from devrun.models.recompute import checkpoint_blocks
from devrun.step import Capability

logger = logging.getLogger("devrun")


def tune(
    model: nn.Module, cfg: Mapping[str, Any], adapter: DeviceAdapter
) -> list[nn.Module]:
    """`peft`, `freeze`, `gradient_checkpointing`; norms that stay in evaluation mode.

    Raises:
        ConfigError: a section does not fit the model.
        UnsupportedFeatureError: the device cannot do it.
    """
    kept_in_eval: list[nn.Module] = []
    key = ""
    try:
        if cfg.get(key := "peft"):
            adapt(model, cfg[key])
        if cfg.get(key := "freeze"):
            kept_in_eval = freeze(model, cfg[key])
        if cfg.get("peft") or cfg.get("freeze"):
            kept_in_eval = list(dict.fromkeys([*kept_in_eval, *frozen_norms(model)]))
            trained = [p for p in model.parameters() if p.requires_grad]
            logger.info(
                "trained: %d of %d parameters; %d norms keep their statistics",
                sum(parameter.numel() for parameter in trained),
                sum(parameter.numel() for parameter in model.parameters()),
                len(kept_in_eval),
            )
        if cfg.get(key := "gradient_checkpointing"):
            if Capability.RECOMPUTATION not in adapter.capabilities:
                instead = FACTS.get(adapter.name, DeviceFacts()).recomputes_by
                raise UnsupportedFeatureError.of(
                    key,
                    f"is not done on {adapter.name}, which plans the memory of a whole "
                    f"graph: leave it out{f', and take {instead}' if instead else ''}",
                )
            done = checkpoint_blocks(model, cfg[key], rng_of(adapter))
            logger.info("computed again: %s", done)
    except DevrunError as error:
        error.locate(where(cfg, key))
        raise
    return kept_in_eval


def check_targets(
    model: nn.Module, loss: Any, loaders: Iterable[Any], data: Mapping[str, Any]
) -> None:
    """Refuse mixed labels for a model that makes its own loss of them.

    Such a loss may take them for several labels at once.
    """
    if loss is None and any(map(softens, loaders)):
        raise ConfigError.of(
            "batch_transform",
            f"mixes labels, which the own loss of {type(model).__name__} may read "
            "otherwise: give the config a `loss` such as CrossEntropyLoss, or leave "
            "MixUp and CutMix out",
            where(data, "batch_transform"),
        )
