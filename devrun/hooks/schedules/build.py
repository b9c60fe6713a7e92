"""From `lr_config` and `momentum_config` to a hook."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch.optim import lr_scheduler

import devrun.hooks.schedules.cycles
import devrun.hooks.schedules.torch_scheduler  # noqa: F401 - these fill registries
from devrun.construct import where
from devrun.errors import ConfigTypeError, UnknownNameError, nearest
from devrun.hooks.base import Hook
from devrun.registry import HOOKS, LR_SCHEDULERS, build_from_cfg
from devrun.scopes import foreign

LR = "LrUpdaterHook"
MOMENTUM = "MomentumUpdaterHook"


def build_lr_hook(cfg: Mapping[str, Any] | Hook) -> Hook:
    """The hook of an `lr_config`, which is left as it was.

    `policy` is the name of an MMCV policy (`step`, `CosineAnnealing`: the hook named
    `<Policy>LrUpdaterHook`, with the first letter of each word made upper case when
    all are lower case), or a class of `torch.optim.lr_scheduler` (`CosineAnnealingLR`);
    the other keys are its arguments. A hook is returned as it is.

    Raises:
        UnknownNameError: no policy of that name, or none given.
        ConfigError: the policy does not take these arguments.
    """
    if isinstance(cfg, Hook):
        return cfg
    policy, name = _names(cfg, "lr_config", LR)
    # the package that the config was written for may have such a policy
    if policy and (name in HOOKS or foreign(HOOKS.name, name) is not None):
        return _build(cfg, name)
    if policy not in LR_SCHEDULERS and "." not in policy:
        known = [*_policies(LR), *LR_SCHEDULERS.module_dict]
        raise UnknownNameError(
            f"no learning-rate policy {policy!r}; {nearest(policy, known)}",
            place=where(cfg, "policy"),
        )
    metric: Any = LR_SCHEDULERS.resolve(policy) is lr_scheduler.ReduceLROnPlateau
    hook = "PlateauSchedulerHook" if metric else "TorchSchedulerHook"
    return _build(cfg, hook, policy=policy)


def build_momentum_hook(cfg: Mapping[str, Any] | Hook) -> Hook:
    """The hook of a `momentum_config`, which is left as it was.

    As `build_lr_hook`, with the hooks named `<Policy>MomentumUpdaterHook`.
    """
    if isinstance(cfg, Hook):
        return cfg
    policy, name = _names(cfg, "momentum_config", MOMENTUM)
    if not policy or name not in HOOKS:
        raise UnknownNameError(
            f"no momentum policy {policy!r}; {nearest(policy, _policies(MOMENTUM))}",
            place=where(cfg, "policy"),
        )
    return _build(cfg, name)


def _names(cfg: Any, section: str, suffix: str) -> tuple[str, str]:
    """The policy of a section, and what its hook is called."""
    if not isinstance(cfg, Mapping):
        raise ConfigTypeError(f"{section} must be a dict or a hook, got {cfg!r}")
    if "policy" not in cfg:
        known = ", ".join(sorted(_policies(suffix)))
        raise UnknownNameError(
            f"{section} needs a 'policy'; known: {known}", place=where(cfg)
        )
    policy = cfg["policy"]
    if not isinstance(policy, str):
        raise ConfigTypeError.of(
            "policy", f"must be a name, got {policy!r}", where(cfg, "policy")
        )
    return policy, (policy.title() if policy.islower() else policy) + suffix


def _policies(suffix: str) -> list[str]:
    names = (
        name.removesuffix(suffix) for name in HOOKS.module_dict if name.endswith(suffix)
    )
    return [name for name in names if name]


def _build(cfg: Mapping[str, Any], name: str, **extra: Any) -> Hook:
    args: Any = copy.copy(cfg)
    del args["policy"]
    args.update(extra, type=name)
    hook: Hook = build_from_cfg(args, HOOKS)
    return hook
