"""Models and losses from a config."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

from devrun.blame import cause_of
from devrun.config.numbers import is_finite
from devrun.config.origin import describe
from devrun.construct import where
from devrun.errors import ConfigError, ConfigTypeError, DevrunError
from devrun.log.logger import quieted
from devrun.registry import LOSSES, MODELS

for _name, _kind in vars(nn).items():
    if isinstance(_kind, type) and issubclass(_kind, _Loss):
        LOSSES.register_module(_name, module=_kind)


def build_model(cfg: Mapping[str, Any]) -> nn.Module:
    """The model that `cfg` describes: a name in `MODELS` or a dotted path.

    Raises:
        ConfigError: nothing has that name, or its constructor refused an argument.
    """
    return _module(MODELS.build(cfg), "model")


def give_first_weights(model: nn.Module) -> None:
    """Call `init_weights()` of a model with `init_cfg`, MMCV's word for how it begins.

    Such a model is built with torch's own weights; its rules may read files.

    Raises:
        ConfigError: a file that `init_cfg` names is missing or does not fit.
    """
    if not hasattr(model, "init_cfg"):
        return
    begin: Any = model.init_weights
    try:
        with quieted(logging.INFO):  # such rules tell of each parameter
            begin()
    except DevrunError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the first weights of {type(model).__name__} failed: {cause_of(error)}"
        ) from error


def build_loss(cfg: Mapping[str, Any] | str) -> nn.Module:
    """The loss that `cfg` describes; a bare name means `{type: name}`.

    The weights of a torch.nn loss (`weight`, `pos_weight`) may be given as lists.

    Raises:
        ConfigError: nothing has that name, or its constructor refused an argument.
    """
    if isinstance(cfg, str):
        cfg = {"type": cfg}
    listed = ("weight", "pos_weight")
    if isinstance(cfg, dict) and any(isinstance(cfg.get(k), list) for k in listed):
        cfg = cfg.copy()
        for key in listed:
            if isinstance(cfg.get(key), list):
                dict.__setitem__(cfg, key, _weights(cfg, key))
    loss = _module(LOSSES.build(cfg), "loss")
    smoothing = getattr(loss, "label_smoothing", 0.0)
    if isinstance(loss, _Loss) and not (is_finite(smoothing) and 0 <= smoothing <= 1):
        raise ConfigError.of(
            "label_smoothing",
            f"must be a number from 0 to 1, got {describe(smoothing)}",
            where(cfg, "label_smoothing"),
        )
    return loss


class LossByMode(_Loss):
    """One loss while the model trains, another while it is evaluated.

    For targets that training alone has, such as mixed labels.
    """

    def __init__(self, training: nn.Module, evaluation: nn.Module) -> None:
        super().__init__()
        self.of_training, self.of_evaluation = training, evaluation

    @property
    def in_force(self) -> nn.Module:
        """The one of the two that is used now."""
        return self.of_training if self.training else self.of_evaluation

    def forward(self, predictions: Any, targets: Any) -> Any:
        return self.in_force(predictions, targets)


def loss_of(cfg: Mapping[str, Any]) -> nn.Module | None:
    """What the keys `loss` and `val_loss` of a whole config ask for.

    Raises:
        ConfigError: `val_loss` alone, or as `build_loss`.
    """
    given, other = (cfg.get(key) for key in ("loss", "val_loss"))
    if given is None and other is not None:
        raise ConfigError.of(
            "val_loss", "is beside a loss, and there is none: give loss too"
        )
    loss = None if given is None else build_loss(given)
    if loss is None or other is None:
        return loss
    return LossByMode(loss, build_loss(other))


def _weights(cfg: Any, key: str) -> torch.Tensor:
    try:
        return torch.tensor(cfg[key], dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ConfigTypeError.of(
            key,
            f"takes a list of numbers, got {describe(cfg[key])}",
            where(cfg, key),
        ) from None


def _module(built: Any, what: str) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise ConfigTypeError(
            f"a {what} must be a torch.nn.Module, got {type(built).__name__}"
        )
    return built
