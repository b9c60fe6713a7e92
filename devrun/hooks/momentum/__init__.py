"""Momentum hooks, under MMCV's names."""

from devrun.hooks.momentum.base import MomentumUpdaterHook
from devrun.hooks.momentum.policies import (
    CosineAnnealingMomentumUpdaterHook,
    CyclicMomentumUpdaterHook,
    LinearAnnealingMomentumUpdaterHook,
    OneCycleMomentumUpdaterHook,
    StepMomentumUpdaterHook,
)

__all__ = [
    "CosineAnnealingMomentumUpdaterHook",
    "CyclicMomentumUpdaterHook",
    "LinearAnnealingMomentumUpdaterHook",
    "MomentumUpdaterHook",
    "OneCycleMomentumUpdaterHook",
    "StepMomentumUpdaterHook",
]
