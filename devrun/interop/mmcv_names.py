"""Which names of MMCV 1.x are devrun's: a row has a module of MMCV's, a module of
devrun's that has the names, and the names.

A `+` before the row: what the module has besides comes from MMCV's own file, where
MMCV is installed. The others would register their classes a second time, or are whole.
"""

from __future__ import annotations

_ROWS = """
 mmcv.utils.config devrun.config Config ConfigDict DictAction
 mmcv.utils.registry devrun.registry Registry build_from_cfg
+mmcv.utils.logging devrun.log get_logger print_log
+mmcv.utils.env devrun.log collect_env

 mmcv.runner.base_runner devrun.runners BaseRunner
+mmcv.runner.builder devrun.runners RUNNERS RUNNER_BUILDERS build_runner
+mmcv.runner.builder devrun.runners build_runner_constructor
 mmcv.runner.default_constructor devrun.runners DefaultRunnerConstructor
 mmcv.runner.epoch_based_runner devrun.runners EpochBasedRunner Runner
 mmcv.runner.iter_based_runner devrun.runners IterBasedRunner IterLoader
 mmcv.runner.log_buffer devrun.log LogBuffer
 mmcv.runner.priority devrun.hooks Priority get_priority
+mmcv.runner.utils devrun.runners get_host_info get_time_str set_random_seed
+mmcv.runner.dist_utils devrun.dist get_dist_info init_dist master_only
+mmcv.runner.dist_utils devrun.dist allreduce_grads allreduce_params
+mmcv.runner.fp16_utils devrun.interop.fp16 auto_fp16 force_fp32 cast_tensor_type
+mmcv.runner.fp16_utils devrun.models wrap_fp16_model
+mmcv.runner.checkpoint devrun.checkpoint CheckpointLoader get_state_dict
+mmcv.runner.checkpoint devrun.checkpoint load_checkpoint save_checkpoint
+mmcv.runner.checkpoint devrun.checkpoint load_state_dict weights_to_cpu
+mmcv.runner.checkpoint devrun.checkpoint _load_checkpoint _load_checkpoint_with_prefix

 mmcv.runner.optimizer.builder devrun.optim OPTIMIZERS OPTIMIZER_BUILDERS
 mmcv.runner.optimizer.builder devrun.optim build_optimizer TORCH_OPTIMIZERS
 mmcv.runner.optimizer.builder devrun.optim build_optimizer_constructor
 mmcv.runner.optimizer.default_constructor devrun.optim DefaultOptimizerConstructor

 mmcv.runner.hooks.hook devrun.hooks HOOKS Hook
 mmcv.runner.hooks.checkpoint devrun.hooks CheckpointHook
 mmcv.runner.hooks.closure devrun.hooks ClosureHook
 mmcv.runner.hooks.ema devrun.hooks EMAHook
 mmcv.runner.hooks.evaluation devrun.hooks EvalHook DistEvalHook
 mmcv.runner.hooks.iter_timer devrun.hooks IterTimerHook
 mmcv.runner.hooks.memory devrun.hooks EmptyCacheHook
 mmcv.runner.hooks.profiler devrun.hooks ProfilerHook
 mmcv.runner.hooks.sampler_seed devrun.hooks DistSamplerSeedHook
 mmcv.runner.hooks.sync_buffer devrun.hooks SyncBuffersHook
 mmcv.runner.hooks.optimizer devrun.hooks OptimizerHook Fp16OptimizerHook
 mmcv.runner.hooks.optimizer devrun.hooks GradientCumulativeOptimizerHook
 mmcv.runner.hooks.optimizer devrun.hooks GradientCumulativeFp16OptimizerHook
 mmcv.runner.hooks.logger.base devrun.hooks LoggerHook
 mmcv.runner.hooks.logger.text devrun.hooks TextLoggerHook
 mmcv.runner.hooks.logger.tensorboard devrun.hooks TensorboardLoggerHook
 mmcv.runner.hooks.logger.wandb devrun.hooks WandbLoggerHook
 mmcv.runner.hooks.logger.mlflow devrun.hooks MlflowLoggerHook
 mmcv.runner.hooks.lr_updater devrun.hooks LrUpdaterHook FixedLrUpdaterHook
 mmcv.runner.hooks.lr_updater devrun.hooks StepLrUpdaterHook ExpLrUpdaterHook
 mmcv.runner.hooks.lr_updater devrun.hooks PolyLrUpdaterHook InvLrUpdaterHook
 mmcv.runner.hooks.lr_updater devrun.hooks CosineAnnealingLrUpdaterHook
 mmcv.runner.hooks.lr_updater devrun.hooks LinearAnnealingLrUpdaterHook
 mmcv.runner.hooks.lr_updater devrun.hooks FlatCosineAnnealingLrUpdaterHook
 mmcv.runner.hooks.lr_updater devrun.hooks CosineRestartLrUpdaterHook
 mmcv.runner.hooks.lr_updater devrun.hooks CyclicLrUpdaterHook OneCycleLrUpdaterHook
 mmcv.runner.hooks.lr_updater devrun.hooks.schedules.policies annealing_cos
 mmcv.runner.hooks.lr_updater devrun.hooks.schedules.policies annealing_linear
 mmcv.runner.hooks.lr_updater devrun.hooks.schedules.cycles format_param
 mmcv.runner.hooks.momentum_updater devrun.hooks MomentumUpdaterHook
 mmcv.runner.hooks.momentum_updater devrun.hooks StepMomentumUpdaterHook
 mmcv.runner.hooks.momentum_updater devrun.hooks CosineAnnealingMomentumUpdaterHook
 mmcv.runner.hooks.momentum_updater devrun.hooks LinearAnnealingMomentumUpdaterHook
 mmcv.runner.hooks.momentum_updater devrun.hooks CyclicMomentumUpdaterHook
 mmcv.runner.hooks.momentum_updater devrun.hooks OneCycleMomentumUpdaterHook
"""

OURS: dict[str, dict[str, str]] = {}
"""Module of MMCV's -> name -> module of devrun's that has it."""
COMPLETED: set[str] = set()
"""Modules whose other names are MMCV's own."""
PACKAGES = {"mmcv", "mmcv.utils", "mmcv.runner"}
"""What holds those modules."""

for _row in filter(None, map(str.rstrip, _ROWS.split("\n"))):
    _theirs, _home, *_names = _row[1:].split()
    OURS.setdefault(_theirs, {}).update(dict.fromkeys(_names, _home))
    if _row.startswith("+"):
        COMPLETED.add(_theirs)
    PACKAGES.add(_theirs.rpartition(".")[0])


def names_below(package: str) -> dict[str, str]:
    """What a package of MMCV's offers: the names of the modules that it holds.

    `mmcv` itself offers those of `mmcv.utils` alone.
    """
    root = "mmcv.utils." if package == "mmcv" else f"{package}."
    found: dict[str, str] = {}
    for module, names in OURS.items():
        if module.startswith(root):
            found.update(dict.fromkeys(names, module))
    return found
