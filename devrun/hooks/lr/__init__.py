"""Learning-rate hooks: MMCV's policies, and any torch scheduler."""

from devrun.hooks.lr.base import LrUpdaterHook
from devrun.hooks.lr.build import build_lr_hook, build_momentum_hook
from devrun.hooks.lr.cycles import CyclicLrUpdaterHook, OneCycleLrUpdaterHook
from devrun.hooks.lr.plateau import PlateauSchedulerHook
from devrun.hooks.lr.policies import (
    CosineAnnealingCooldownLrUpdaterHook,
    CosineAnnealingLrUpdaterHook,
    CosineRestartLrUpdaterHook,
    ExpLrUpdaterHook,
    FixedLrUpdaterHook,
    FlatCosineAnnealingLrUpdaterHook,
    InvLrUpdaterHook,
    LinearAnnealingLrUpdaterHook,
    PolyLrUpdaterHook,
    StepLrUpdaterHook,
)
from devrun.hooks.lr.torch_scheduler import TorchSchedulerHook
from devrun.hooks.schedules.checks import format_param
from devrun.optim.schedules import annealing_cos, annealing_linear

__all__ = [
    "CosineAnnealingCooldownLrUpdaterHook",
    "CosineAnnealingLrUpdaterHook",
    "CosineRestartLrUpdaterHook",
    "CyclicLrUpdaterHook",
    "ExpLrUpdaterHook",
    "FixedLrUpdaterHook",
    "FlatCosineAnnealingLrUpdaterHook",
    "InvLrUpdaterHook",
    "LinearAnnealingLrUpdaterHook",
    "LrUpdaterHook",
    "OneCycleLrUpdaterHook",
    "PlateauSchedulerHook",
    "PolyLrUpdaterHook",
    "StepLrUpdaterHook",
    "TorchSchedulerHook",
    "annealing_cos",
    "annealing_linear",
    "build_lr_hook",
    "build_momentum_hook",
    "format_param",
]
