"""Optimizers from a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from devrun.config.numbers import check_finite
from devrun.construct import where, where_key
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest
from devrun.optim.constructor import DefaultOptimizerConstructor
from devrun.registry import OPTIMIZER_BUILDERS, OPTIMIZERS


def register_torch_optimizers() -> list[str]:
    """Register every optimizer of torch.optim that is not there yet; their names."""
    names = []
    for name, kind in vars(torch.optim).items():
        if isinstance(kind, type) and issubclass(kind, Optimizer):
            if kind is not Optimizer and name not in OPTIMIZERS.module_dict:
                OPTIMIZERS.register_module(name, module=kind)
            names.append(name)
    names.remove("Optimizer")
    return names


TORCH_OPTIMIZERS = register_torch_optimizers()


def build_optimizer_constructor(cfg: Mapping[str, Any]) -> Any:
    """The callable `model -> optimizer` that `cfg` describes."""
    return OPTIMIZER_BUILDERS.build(cfg)


def build_optimizer(
    model: nn.Module, cfg: Mapping[str, Any]
) -> Optimizer | dict[str, Optimizer]:
    """The optimizer of `model` that `cfg` describes, or a dict of several.

    Besides `type` and its arguments, `cfg` may hold `paramwise_cfg` (see
    `DefaultOptimizerConstructor`) and `constructor` (a name in `OPTIMIZER_BUILDERS`).
    A `cfg` whose values are all dicts has one optimizer per key, for the submodule of
    that name: `{"generator": {...}, "discriminator": {...}}`. `cfg` is not changed.

    Raises:
        ConfigError: an unknown type, argument, option or submodule.
    """
    if not isinstance(cfg, dict):
        raise ConfigTypeError(f"optimizer must be a dict, got {type(cfg).__name__}")
    if cfg and all(isinstance(part, dict) for part in cfg.values()):
        return {key: _build_one(_submodule(model, key, cfg), cfg[key]) for key in cfg}
    return _build_one(model, cfg)


def _build_one(model: nn.Module, cfg: dict[str, Any]) -> Optimizer:
    check_finite(cfg)
    optimizer_cfg = cfg.copy()
    builder_cfg = {
        "type": optimizer_cfg.pop("constructor", DefaultOptimizerConstructor),
        "paramwise_cfg": optimizer_cfg.pop("paramwise_cfg", None),
        "optimizer_cfg": optimizer_cfg,
    }
    try:
        constructor = build_optimizer_constructor(builder_cfg)
    except ConfigError as error:
        error.locate(where_key(cfg, error.key))
        raise
    optimizer = constructor(model)
    if not isinstance(optimizer, Optimizer):
        raise ConfigTypeError(
            f"{type(constructor).__name__} must return a torch.optim.Optimizer, "
            f"got {type(optimizer).__name__}"
        )
    return optimizer


def _submodule(model: nn.Module, name: str, cfg: dict[str, Any]) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        hint = nearest(name, [child for child, _ in model.named_children()])
        raise UnknownNameError(
            f"an optimizer is given for {name!r}, which "
            f"{type(model).__name__} does not have; {hint}",
            place=where(cfg, name),
        ) from None
