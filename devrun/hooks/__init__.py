"""Hooks: everything that happens around the steps of a run, one family a file."""

from devrun.hooks.base import STAGES, Hook, Priority, get_priority
from devrun.hooks.checkpoint import CheckpointHook
from devrun.hooks.early_stopping import EarlyStoppingHook
from devrun.hooks.ema import EMAHook
from devrun.hooks.energy import EnergyHook
from devrun.hooks.evaluation import DistEvalHook, EvalHook
from devrun.hooks.logger import (
    LoggerHook,
    MlflowLoggerHook,
    TensorboardLoggerHook,
    TextLoggerHook,
    WandbLoggerHook,
)
from devrun.hooks.mlperf import MLPerfLoggerHook
from devrun.hooks.processes import (
    DistSamplerSeedHook,
    StopTogetherHook,
    SyncBuffersHook,
)
from devrun.hooks.profiler import ProfilerHook
from devrun.hooks.progress import ProgressHook
from devrun.hooks.schedules.hook import LrUpdaterHook, MomentumUpdaterHook
from devrun.hooks.schedules.policies import (
    CosineAnnealingLrUpdaterHook,
    CosineAnnealingMomentumUpdaterHook,
    CosineRestartLrUpdaterHook,
    CyclicLrUpdaterHook,
    CyclicMomentumUpdaterHook,
    ExpLrUpdaterHook,
    FixedLrUpdaterHook,
    FlatCosineAnnealingLrUpdaterHook,
    InvLrUpdaterHook,
    LinearAnnealingLrUpdaterHook,
    LinearAnnealingMomentumUpdaterHook,
    OneCycleLrUpdaterHook,
    OneCycleMomentumUpdaterHook,
    PolyLrUpdaterHook,
    StepLrUpdaterHook,
    StepMomentumUpdaterHook,
)
from devrun.hooks.schedules.torch_scheduler import (
    PlateauSchedulerHook,
    TorchSchedulerHook,
)
from devrun.hooks.simple import ClosureHook, EmptyCacheHook, MaxTimeHook
from devrun.hooks.timer import IterTimerHook
from devrun.hooks.update import (
    Fp16OptimizerHook,
    GradientCumulativeFp16OptimizerHook,
    GradientCumulativeOptimizerHook,
    OptimizerHook,
)
from devrun.hooks.watchdog import WatchdogHook
from devrun.registry import HOOKS

__all__ = [
    "HOOKS",
    "STAGES",
    "CheckpointHook",
    "ClosureHook",
    "CosineAnnealingLrUpdaterHook",
    "CosineAnnealingMomentumUpdaterHook",
    "CosineRestartLrUpdaterHook",
    "CyclicLrUpdaterHook",
    "CyclicMomentumUpdaterHook",
    "DistEvalHook",
    "DistSamplerSeedHook",
    "EMAHook",
    "EarlyStoppingHook",
    "EmptyCacheHook",
    "EnergyHook",
    "EvalHook",
    "ExpLrUpdaterHook",
    "FixedLrUpdaterHook",
    "FlatCosineAnnealingLrUpdaterHook",
    "Fp16OptimizerHook",
    "GradientCumulativeFp16OptimizerHook",
    "GradientCumulativeOptimizerHook",
    "Hook",
    "InvLrUpdaterHook",
    "IterTimerHook",
    "LinearAnnealingLrUpdaterHook",
    "LinearAnnealingMomentumUpdaterHook",
    "LoggerHook",
    "LrUpdaterHook",
    "MLPerfLoggerHook",
    "MaxTimeHook",
    "MlflowLoggerHook",
    "MomentumUpdaterHook",
    "OneCycleLrUpdaterHook",
    "OneCycleMomentumUpdaterHook",
    "OptimizerHook",
    "PlateauSchedulerHook",
    "PolyLrUpdaterHook",
    "Priority",
    "ProfilerHook",
    "ProgressHook",
    "StepLrUpdaterHook",
    "StepMomentumUpdaterHook",
    "StopTogetherHook",
    "SyncBuffersHook",
    "TensorboardLoggerHook",
    "TextLoggerHook",
    "TorchSchedulerHook",
    "WandbLoggerHook",
    "WatchdogHook",
    "get_priority",
]
