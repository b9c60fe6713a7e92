"""The finder that answers `import mmcv...` in a process that asked for it.

Modules of the table are devrun's. The rest is MMCV's own, where MMCV 1.x is installed:
its packages, whose `__init__` then imports ours among its other modules, `mmcv.cnn`,
`mmcv.image` and so on. Without it the packages are made of the table.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from devrun.errors import ConfigError
from devrun.registry import Registry

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
 mmcv.runner.hooks.lr_updater devrun.hooks.schedules.policies format_param
 mmcv.runner.hooks.momentum_updater devrun.hooks MomentumUpdaterHook
 mmcv.runner.hooks.momentum_updater devrun.hooks StepMomentumUpdaterHook
 mmcv.runner.hooks.momentum_updater devrun.hooks CosineAnnealingMomentumUpdaterHook
 mmcv.runner.hooks.momentum_updater devrun.hooks LinearAnnealingMomentumUpdaterHook
 mmcv.runner.hooks.momentum_updater devrun.hooks CyclicMomentumUpdaterHook
 mmcv.runner.hooks.momentum_updater devrun.hooks OneCycleMomentumUpdaterHook
"""
"""Which names are devrun's: a module of MMCV's, one of devrun's that has the names, and
the names. A `+` before the row: what the module has besides comes from MMCV's own file,
where MMCV is installed. The others would register classes a second time, or are whole.
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


INSTALL = "pip install mmcv==1.7.2 (with MMCV_WITH_OPS=0 it needs no compiler)"


class Finder(MetaPathFinder, Loader):
    """Finds and fills the modules of the table.

    Args:
        installed: the folder of the package `mmcv`, or None.
    """

    def __init__(self, installed: Path | None) -> None:
        self.installed = installed

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        parent = fullname.rpartition(".")[0]
        if fullname in OURS or (fullname in PACKAGES and not self.installed):
            return ModuleSpec(fullname, self, is_package=True)
        if fullname.partition(".")[0] != "mmcv" or (self.installed and path != []):
            return None
        # `from parent import name` arrives here too, once parent has no such name. An
        # error that has the name would be passed over there.
        raise ModuleNotFoundError(_lacking(fullname, parent, self.installed))

    def described(self) -> str:
        """What imports of `mmcv` give now, in one line."""
        beside = f"the rest of mmcv is that in {self.installed}"
        return "imports of mmcv.runner and mmcv.utils give devrun's names; " + (
            beside if self.installed else f"mmcv itself is not installed: {INSTALL}"
        )

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        homes = OURS.get(name) or names_below(name)
        ours = {n: getattr(import_module(home), n) for n, home in homes.items()}
        for value in ours.values():
            if isinstance(value, Registry):
                _leave_room(value)
        vars(module).update(ours, __all__=[n for n in ours if not n.startswith("_")])
        if name in COMPLETED and self.installed:
            vars(module)["__getattr__"] = _Completion(name, self.installed)
        elif name == "mmcv":
            vars(module)["__version__"] = "1.7.2"  # whose names these are


def _leave_room(registry: Registry) -> None:
    """Let those who write for MMCV use the names of ours that MMCV does not have."""
    known = registry.module_dict.items()
    own = {n for n, m in known if str(m.__module__).startswith("devrun.")}
    registry.yielding |= own - {n for names in OURS.values() for n in names}


def _lacking(name: str, parent: str, installed: Path | None) -> str:
    if parent in OURS and installed:
        return f"{name} is not in devrun's {parent}; see docs/from-mmcv.md"
    return f"{name} is not in devrun; it needs MMCV beside it: {INSTALL}"


class _Completion:
    """`__getattr__` of a module: what MMCV's own file of that name has besides.

    The file runs when it is first needed, as a module that nobody else sees: those who
    look for an attribute everywhere, as some do, must not start it.
    """

    def __init__(self, name: str, installed: Path) -> None:
        file = installed.joinpath(*name.split(".")[1:]).with_suffix(".py")
        self._name, self._file = name, file
        self._source = file.read_text(encoding="utf-8") if file.exists() else ""
        self._theirs: ModuleType | None = None

    def __call__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._source:
            raise AttributeError(f"module {self._name!r} has no attribute {name!r}")
        if self._theirs is None:
            loader = SourceFileLoader(self._name, str(self._file))
            spec = importlib.util.spec_from_loader(self._name, loader)
            theirs = importlib.util.module_from_spec(cast(ModuleSpec, spec))
            loader.exec_module(theirs)
            self._theirs = theirs
        return getattr(self._theirs, name)


def install() -> Finder:
    """Answer imports of `mmcv` from now on, in this process; a second time changes
    nothing.

    Raises:
        ConfigError: the real package is imported already, or is not of MMCV 1.x.
    """
    for finder in sys.meta_path:
        if isinstance(finder, Finder):
            return finder
    if "mmcv" in sys.modules:
        file = getattr(sys.modules["mmcv"], "__file__", None) or "somewhere"
        raise ConfigError(
            f"the real mmcv is imported already, from {file}; "
            "ask for devrun's before anything imports mmcv: import "
            "devrun.interop.mmcv first, or start with python -m devrun.interop.mmcv"
        )
    found = Finder(_installed())
    sys.meta_path.insert(0, found)
    return found


def _installed() -> Path | None:
    """The folder of an installed MMCV.

    Raises:
        ConfigError: it is one that has no runner, so MMCV 2.
    """
    spec = importlib.util.find_spec("mmcv")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    if not (folder / "runner").is_dir():
        raise ConfigError(
            f"the mmcv in {folder} is not MMCV 1.x, whose names devrun stands for; "
            "use an environment without it, or with mmcv==1.7.2"
        )
    return folder
