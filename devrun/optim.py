"""Optimizers from a config, with options per parameter by MMCV's rules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from devrun.config.numbers import check_finite
from devrun.construct import where, where_key
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest
from devrun.registry import OPTIMIZER_BUILDERS as OPTIMIZER_BUILDERS
from devrun.registry import OPTIMIZERS as OPTIMIZERS

OPTIONS = (
    "custom_keys",
    "bias_lr_mult",
    "bias_decay_mult",
    "norm_decay_mult",
    "dwconv_decay_mult",
    "dcn_offset_lr_mult",
    "bypass_duplicate",
)
CUSTOM_OPTIONS = ("lr_mult", "decay_mult")
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)  # _NormBase: batch and instance norm
DEFORMABLE = frozenset({"DeformConv2d", "ModulatedDeformConv2d"})

logger = logging.getLogger("devrun")


def register_torch_optimizers() -> list[str]:
    """Register every optimizer of torch.optim that is not there yet; their names."""
    names = []
    for name, kind in vars(torch.optim).items():
        if isinstance(kind, type) and issubclass(kind, Optimizer):
            if kind is not Optimizer and name not in OPTIMIZERS.module_dict:
                OPTIMIZERS.register_module(name, module=kind)
                # also where the user's code is imported after this
                OPTIMIZERS.yielding.add(name)
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


@OPTIMIZER_BUILDERS.register_module()
class DefaultOptimizerConstructor:
    """Builds the optimizer of a model; with `paramwise_cfg`, one group a parameter.

    Args:
        optimizer_cfg: `type` and arguments of the optimizer.
        paramwise_cfg: multipliers of its `lr` and `weight_decay`, all 1 by default:

            - `custom_keys`: `{part of a name: {lr_mult, decay_mult}}`. The longest key
              found in a parameter's name wins, then the first by alphabet, and no
              other rule applies to that parameter.
            - `bias_lr_mult`, `bias_decay_mult`: biases, but those of norm layers (both)
              and of the offset layers of deformable convolutions.
            - `norm_decay_mult`: weights and biases of norm layers.
            - `dwconv_decay_mult`: depth-wise convolutions.
            - `dcn_offset_lr_mult`: offset layers of deformable convolutions.
            - `bypass_duplicate`: take a shared parameter once, instead of refusing it.

    Raises:
        ConfigTypeError: (a TypeError) a part that must be a dict is not one.
        ConfigError: (a ValueError) a multiplier of an `lr` or `weight_decay` that
            `optimizer_cfg` does not give.
        UnknownNameError: an option that is not in the list above.
    """

    def __init__(
        self,
        optimizer_cfg: Mapping[str, Any],
        paramwise_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        _require_dict(optimizer_cfg, "optimizer_cfg")
        self.optimizer_cfg = optimizer_cfg
        self.paramwise_cfg = {} if paramwise_cfg is None else paramwise_cfg
        _require_dict(self.paramwise_cfg, "paramwise_cfg")
        self.custom_keys = self.paramwise_cfg.get("custom_keys", {})
        _require_dict(self.custom_keys, "custom_keys")
        for key, mults in self.custom_keys.items():
            _require_dict(mults, f"custom_keys[{key!r}]")
        self.base_lr = optimizer_cfg.get("lr")
        self.base_wd = optimizer_cfg.get("weight_decay")
        if type(self) is DefaultOptimizerConstructor:  # subclasses add their own
            self._refuse_unknown_options()
        self._require_bases()

    def _refuse_unknown_options(self) -> None:
        places = {f"custom_keys[{key!r}]": m for key, m in self.custom_keys.items()}
        for place, given in {"paramwise_cfg": self.paramwise_cfg, **places}.items():
            options = OPTIONS if place == "paramwise_cfg" else CUSTOM_OPTIONS
            for name in given:
                if name not in options:
                    raise UnknownNameError(
                        f"{place} has no option {name!r}; {nearest(name, options)}",
                        place=where(given, name),
                    )

    def _require_bases(self) -> None:
        given = set(self.paramwise_cfg).union(*self.custom_keys.values())
        for base, value in (("lr", self.base_lr), ("weight_decay", self.base_wd)):
            ending = "lr_mult" if base == "lr" else "decay_mult"
            used = sorted(name for name in given if name.endswith(ending))
            if value is None and used:
                raise ConfigError(
                    f"{', '.join(used)} multiplies {base}, "
                    f"which the optimizer config does not give: add {base}",
                    place=where(self.paramwise_cfg),
                )

    def __call__(self, model: nn.Module) -> Optimizer:
        if not self.paramwise_cfg:
            params: list[Any] = list(model.parameters())
        else:
            params = []
            self.add_params(params, model)
            self._report_unused_keys(model)
        built: Optimizer = OPTIMIZERS.build(self.optimizer_cfg, {"params": params})
        return built

    def add_params(
        self,
        params: list[dict[str, Any]],
        module: nn.Module,
        prefix: str = "",
        is_dcn_module: bool = False,
    ) -> None:
        """Append a group for each parameter of `module` and, in turn, its children.

        `is_dcn_module` says that the parent is a deformable convolution. The point to
        override for rules of one's own.
        """
        by_length = sorted(self.custom_keys, key=lambda key: (-len(key), key))
        for name, param in module.named_parameters(recurse=False):
            full_name = f"{prefix}.{name}"
            group: dict[str, Any] = {"params": [param]}
            if param.requires_grad:
                if any(param is other["params"][0] for other in params):
                    self._refuse_duplicate(full_name)
                    continue
                key = next((key for key in by_length if key in full_name), None)
                if key is not None:
                    mults = self.custom_keys[key]
                    self._scale(group, mults.get("lr_mult", 1.0), "lr")
                    self._scale(group, mults.get("decay_mult", 1.0), "weight_decay")
                else:
                    self._apply_rules(group, module, name, prefix, is_dcn_module)
            params.append(group)
        deformable = any(c.__name__ in DEFORMABLE for c in type(module).__mro__)
        for child_name, child in module.named_children():
            child_prefix = f"{prefix}.{child_name}" if prefix else child_name
            self.add_params(params, child, child_prefix, deformable)

    def _apply_rules(
        self,
        group: dict[str, Any],
        module: nn.Module,
        name: str,
        prefix: str,
        is_dcn_module: bool,
    ) -> None:
        mult = self.paramwise_cfg.get
        is_norm = isinstance(module, NORMS)
        if name == "bias" and not (is_norm or is_dcn_module):
            self._scale(group, mult("bias_lr_mult", 1.0), "lr")
        offset = is_dcn_module and "conv_offset" in prefix
        if offset and isinstance(module, nn.Conv2d):
            self._scale(group, mult("dcn_offset_lr_mult", 1.0), "lr")
        if is_norm:
            self._scale(group, mult("norm_decay_mult", 1.0), "weight_decay")
        elif isinstance(module, nn.Conv2d) and module.in_channels == module.groups:
            self._scale(group, mult("dwconv_decay_mult", 1.0), "weight_decay")
        elif name == "bias" and not is_dcn_module:
            self._scale(group, mult("bias_decay_mult", 1.0), "weight_decay")

    def _scale(self, group: dict[str, Any], mult: float, what: str) -> None:
        base = self.base_lr if what == "lr" else self.base_wd
        if base is not None:  # else the optimizer's own default stays
            group[what] = base * mult

    def _refuse_duplicate(self, full_name: str) -> None:
        if not self.paramwise_cfg.get("bypass_duplicate", False):
            raise ConfigError(
                f"the parameter {full_name.lstrip('.')!r} is shared with a module "
                f"before it: set bypass_duplicate=True in paramwise_cfg to take it once"
            )
        logger.warning("%s is shared: its first place counts", full_name.lstrip("."))

    def _report_unused_keys(self, model: nn.Module) -> None:
        names = [f".{name}" for name, _ in model.named_parameters()]
        for key in self.custom_keys:
            if not any(key in name for name in names):
                logger.warning("custom_keys: no parameter has %r in its name", key)


def _require_dict(given: Any, label: str) -> None:
    if not isinstance(given, dict):
        raise ConfigTypeError.of(label, f"must be a dict, got {type(given).__name__}")
