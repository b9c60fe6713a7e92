"""`poptorch.Options`: every choice about the device, frozen once it is used."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

import copy
import os
from typing import Any

import torch

from poptorch import _options_config, enums
from poptorch._logging import logger
from poptorch._options_base import check, check_bool, check_int
from poptorch._options_config import ConfigFileError
from poptorch._options_locations import (
    TensorLocationSettings,
    _TensorLocationOptions,
)
from poptorch._options_records import RecordedOptions
from poptorch._options_sections import (
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TrainingOptions,
)
from poptorch._strategies import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    _IExecutionStrategy,
)

__all__ = [
    "ConfigFileError",
    "Options",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
    "_DistributedOptions",
    "_IExecutionStrategy",
]

_SECTIONS = ("_popart", "_training", "_precision", "_locations", "_jit", "_distributed")


class Options(RecordedOptions):
    """All setters change the object and return it, so that they can be chained.

    Freezing: a `DataLoader`, `trainingModel` or `inferenceModel` freezes the object
    it is given; a setter then raises `AttributeError`. `clone()` and `copy.deepcopy`
    give an unfrozen copy.
    """

    _training: _TrainingOptions
    _precision: _PrecisionOptions
    _locations: _TensorLocationOptions
    _distributed: _DistributedOptions
    _jit: _JitOptions
    _execution_strategy: _IExecutionStrategy

    def __init__(self) -> None:
        popart = _PopartOptions()
        for name, section in (
            ("_popart", popart),
            ("_training", _TrainingOptions()),
            ("_precision", _PrecisionOptions(popart)),
            ("_locations", _TensorLocationOptions()),
            ("_jit", _JitOptions()),
            ("_distributed", _DistributedOptions()),
            ("_execution_strategy", PipelinedExecution()),
        ):
            object.__setattr__(self, name, section)
        super().__init__(**_defaults())
        cache = os.environ.get("POPTORCH_CACHE_DIR")
        if cache:
            self.enableExecutableCaching(cache)
        default = os.environ.get("POPTORCH_DEFAULT_OPTIONS")
        if default:
            self.from_json(default)

    # -- sections --------------------------------------------------------------------

    @property
    def Training(self) -> _TrainingOptions:
        """Accumulation and reduction."""
        return self._training

    @property
    def Precision(self) -> _PrecisionOptions:
        """Number formats."""
        return self._precision

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Where tensors live."""
        return self._locations

    @property
    def Distributed(self) -> _DistributedOptions:
        """Processes."""
        return self._distributed

    @property
    def Jit(self) -> _JitOptions:
        """Kept for older programs."""
        return self._jit

    @property
    def _Popart(self) -> _PopartOptions:
        return self._popart

    # -- the batch and its outputs -----------------------------------------------------

    def deviceIterations(self, device_iterations: int) -> Options:
        """How many updates (or inference steps) one call runs on the device."""
        check_int(device_iterations, "deviceIterations")
        return self.set(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Options:
        """Data-parallel copies of the model in this process."""
        check_int(replication_factor, "replicationFactor")
        return self.set(replication_factor=replication_factor)

    def inputReplicaGrouping(
        self, input_group_size: int, comm_group_type: enums.CommGroupType
    ) -> Options:
        """Groups of replicas that share their input.

        Raises:
            ValueError: Type `All`, a size above the number of replicas, or one that
                does not divide it (so set the replication factor first).
        """
        self.checkIsFrozen()
        if comm_group_type == enums.CommGroupType.NoGrouping:
            input_group_size, comm_group_type = 1, enums.CommGroupType.Consecutive
        replicas = self.replication_factor
        if comm_group_type == enums.CommGroupType.All:
            raise ValueError("CommGroupType.All is no input replica grouping")
        if input_group_size > replicas or replicas % input_group_size:
            raise ValueError(
                f"input group size {input_group_size} must divide the replication "
                f"factor {replicas} (set replicationFactor first)"
            )
        return self.set(
            input_group_size=input_group_size, input_group_type=comm_group_type
        )

    def outputMode(
        self,
        output_mode: enums.OutputMode,
        output_return_period: int | None = None,
    ) -> Options:
        """Which micro-batches' outputs come back; `EveryN` needs a period."""
        self.checkIsFrozen()
        check(
            isinstance(output_mode, enums.OutputMode),
            f"outputMode takes an OutputMode, not {output_mode!r}",
        )
        if output_mode == enums.OutputMode.EveryN:
            check(
                isinstance(output_return_period, int) and output_return_period > 0,
                "OutputMode.EveryN needs an output_return_period of at least 1",
            )
        elif output_return_period is not None:
            logger.info("output_return_period is ignored with %s", output_mode.name)
        return self.set(
            output_mode=output_mode, output_return_period=output_return_period or 1
        )

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: enums.OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> None:
        """Return a device tensor through `executor.getAnchoredTensor(short_name)`."""
        if output_mode is None:
            entry: list[Any] = [long_name, True, enums.OutputMode.Final, 1]
        else:
            entry = [long_name, False, output_mode, output_return_period or 1]
        self.anchored_tensors[short_name] = entry

    def setExecutionStrategy(self, strategy: _IExecutionStrategy) -> Options:
        """How blocks are arranged on IPUs."""
        self.checkIsFrozen()
        check(
            isinstance(strategy, _IExecutionStrategy),
            f"setExecutionStrategy takes a strategy object, not {strategy!r}",
        )
        object.__setattr__(self, "_execution_strategy", strategy)
        logger.debug("poptorch.Options set execution_mode to value %d", strategy.mode)
        return self

    def setAvailableMemoryProportion(
        self, available_memory_proportion: dict[str, float]
    ) -> Options:
        """Share of each IPU's memory for temporaries of products: `{"IPU0": 0.3}`."""
        self.checkIsFrozen()
        proportions = {}
        for key, value in available_memory_proportion.items():
            check(
                isinstance(key, str) and key.startswith("IPU") and key[3:].isdigit(),
                f"Available memory proportions have keys IPU0, IPU1, ...: {key!r}",
            )
            proportions[int(key[3:])] = value
        return self.set(available_memory_proportion=proportions)

    def randomSeed(self, random_seed: int) -> Options:
        """Seed the device's random numbers, and torch's own on the host."""
        check_int(random_seed, "randomSeed")
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(random_seed)
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Options:
        """True: replicas agree on buffers, which a forward may then not change."""
        check_bool(broadcast_buffers, "broadcastBuffers")
        return self.set(broadcast_buffers=broadcast_buffers)

    # -- copying, freezing, showing ----------------------------------------------------

    def clone(self) -> Options:
        """An unfrozen copy that shares nothing."""
        return copy.deepcopy(self)

    def defaultOutputMode(self) -> bool:
        """Whether the output mode was never chosen."""
        return bool(self.output_mode == enums.OutputMode.Default)

    def from_json(self, string: str) -> Options:
        """Apply a JSON object of setter names and values."""
        _options_config.apply_json(self, string)
        return self

    def loadFromFile(self, filepath: str) -> None:
        """Apply a file with one setter call a line."""
        _options_config.apply_file(self, filepath)

    def toDict(self) -> dict[str, Any]:
        """Everything the backend gets; the output mode must be resolved."""
        check(not self.defaultOutputMode(), "The output mode is not resolved yet")
        merged = super().toDict()
        for section in ("_training", "_precision", "_locations", "_distributed"):
            merged.update(getattr(self, section).toDict())
        merged.update(self._execution_strategy.backendOptions())
        merged.update(self._popart.options)
        merged["_popart_keys"] = sorted(self._popart.options)
        return merged

    def _freeze(self) -> None:
        super()._freeze()
        for section in _SECTIONS:
            getattr(self, section)._freeze()

    def __repr__(self) -> str:
        shown = [f"{key}={value!r}" for key, value in self._values.items()]
        shown += [repr(getattr(self, section)) for section in _SECTIONS]
        shown.append(repr(self._execution_strategy))
        return f"Options({', '.join(shown)})"


def _defaults() -> dict[str, Any]:
    return {
        "replication_factor": 1,
        "device_iterations": 1,
        "input_group_size": 1,
        "input_group_type": enums.CommGroupType.Consecutive,
        "log_dir": ".",
        "auto_round_num_ipus": False,
        "anchored_tensors": {},
        "output_mode": enums.OutputMode.Default,
        "output_return_period": 1,
        "connection_type": enums.ConnectionType.Always,
        "sync_pattern": enums.SyncPattern.Full,
        "available_memory_proportion": {},
        "broadcast_buffers": True,
        "log_cycle_count": False,
        "show_compilation_progress_bar": True,
        "module_namescope_enabled": True,
        "relax_optimizer_checks": False,
        "source_location_excludes": [],
        "updatable_named_buffers": [],
        "max_repeat_logs": 4,
        "stable_norm": False,
        "synthetic_data": False,
    }
