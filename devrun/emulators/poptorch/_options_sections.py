"""The sections of `Options`: Training, Precision, Jit, _Popart, Distributed."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

import os
import warnings
from typing import Any

import torch

from poptorch import enums
from poptorch._logging import logger
from poptorch._options_base import OptionsDict, check, check_bool, check_int


class _JitOptions(OptionsDict):
    """What is left of the tracing front end, which is gone since 3.0."""

    def __init__(self) -> None:
        super().__init__(trace_model=False)

    def traceModel(self, trace_model: bool) -> _JitOptions:
        """Accepted when False; `ValueError` when True: there is no tracing."""
        self.checkIsFrozen()
        if trace_model:
            raise ValueError(
                "Tracing is no longer supported by PopTorch: the dispatcher is the "
                "only front end. Remove Jit.traceModel(True)."
            )
        logger.warning("Jit.traceModel is deprecated and has no effect")
        return self


class _PrecisionOptions(OptionsDict):
    """Number formats of products, rounding and exceptions."""

    autocast_policy: object = None  # read by callers written for releases before 3.0

    def __init__(self, popart_options: _PopartOptions) -> None:
        object.__setattr__(self, "_popart_options", popart_options)
        super().__init__(
            autocast_enabled=False,
            half_float_casting=enums.HalfFloatCastingBehavior.Default,
            running_statistics_always_float=True,
        )

    def autocastEnabled(self, autocast_enabled: bool) -> _PrecisionOptions:
        """Deprecated; recorded."""
        return self.set(autocast_enabled=autocast_enabled)

    def halfFloatCasting(self, half_float_casting: Any) -> _PrecisionOptions:
        """Deprecated: casts follow torch's rules since 3.0."""
        self.checkIsFrozen()
        warnings.warn(
            "Precision.halfFloatCasting is deprecated and has no effect",
            DeprecationWarning,
            stacklevel=2,
        )
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> _PrecisionOptions:
        """Deprecated; `ValueError` for anything but a bool."""
        self.checkIsFrozen()
        if not isinstance(value, bool):
            raise ValueError("runningStatisticsAlwaysFloat takes True or False")
        logger.warning("Precision.runningStatisticsAlwaysFloat is deprecated")
        return self.set(running_statistics_always_float=value)

    def enableFloatingPointExceptions(self, enabled: bool) -> _PrecisionOptions:
        """Raise an error where an operation yields inf or nan."""
        check_bool(enabled, "enableFloatingPointExceptions")
        return self.createOrSet(enable_floating_point_exceptions=enabled)

    def enableStochasticRounding(self, enabled: bool) -> _PrecisionOptions:
        """Recorded; the emulator rounds to nearest."""
        check_bool(enabled, "enableStochasticRounding")
        return self.createOrSet(enable_stochastic_rounding=enabled)

    def setPartialsType(self, dtype: torch.dtype) -> _PrecisionOptions:
        """The type of partial sums in products: `torch.float` or `torch.half`."""
        self.checkIsFrozen()
        names = {torch.float: "float", torch.half: "half"}
        if not isinstance(dtype, torch.dtype) or dtype not in names:
            raise ValueError(f"partialsType must be torch.float or torch.half: {dtype}")
        self._popart_options.set("partialsTypeMatMuls", names[dtype])
        self._popart_options.set("convolutionOptions", {"partialsType": names[dtype]})
        return self


class _TrainingOptions(OptionsDict):
    """Accumulation and the way gradients are combined."""

    def __init__(self) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=enums.ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=(
                enums.MeanReductionStrategy.Post
            ),
            auto_loss_scaling=False,
            convolution_dithering=False,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> _TrainingOptions:
        """Micro-batches per weight update and replica."""
        check_int(gradient_accumulation, "gradientAccumulation")
        return self.set(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(
        self, reduction_type: enums.ReductionType
    ) -> _TrainingOptions:
        """Sum or Mean over accumulation steps and replicas together."""
        self.checkIsFrozen()
        allowed = (enums.ReductionType.Sum, enums.ReductionType.Mean)
        if reduction_type not in allowed:
            raise ValueError(
                "accumulationAndReplicationReductionType must be ReductionType.Sum "
                f"or ReductionType.Mean, not {reduction_type!r}"
            )
        return self.set(accumulation_and_replication_reduction_type=reduction_type)

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, strategy: enums.MeanReductionStrategy
    ) -> _TrainingOptions:
        """When a mean divides; results differ in half precision only."""
        self.checkIsFrozen()
        if not isinstance(strategy, enums.MeanReductionStrategy):
            raise ValueError(f"not a MeanReductionStrategy: {strategy!r}")
        object.__setattr__(self, "_strategy_chosen", True)
        return self.set(meanAccumulationAndReplicationReductionStrategy=strategy)

    def setAutomaticLossScaling(self, enabled: bool) -> _TrainingOptions:
        """Let the device find the loss scale; fp32 results do not change."""
        check_bool(enabled, "setAutomaticLossScaling")
        return self.set(auto_loss_scaling=enabled)

    def setConvolutionDithering(self, enabled: bool) -> _TrainingOptions:
        """Recorded."""
        check_bool(enabled, "setConvolutionDithering")
        return self.set(convolution_dithering=enabled)


class _PopartOptions:
    """PopART session options by name; names and types are checked at compilation."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self._is_frozen = False

    def checkIsFrozen(self) -> None:
        """As `OptionsDict.checkIsFrozen`."""
        if self._is_frozen:
            raise AttributeError("Can't modify frozen Options")

    def set(self, key: str, value: Any) -> _PopartOptions:
        """Set one session option; dictionaries are merged."""
        self.checkIsFrozen()
        if isinstance(value, dict):
            value = {**self.options.get(key, {}), **value}
            for name, item in value.items():
                logger.debug("poptorch.Options set %s[%s] to %s", key, name, item)
        elif isinstance(value, (list, tuple, set)):
            for item in value:
                logger.debug("poptorch.Options added %s to %s", item, key)
        else:
            shown = str(value).lower() if isinstance(value, bool) else value
            logger.debug("poptorch.Options set %s to value %s", key, shown)
        self.options[key] = value
        return self

    def setEngineOptions(self, engine_options: dict[str, str]) -> _PopartOptions:
        """Poplar engine options."""
        return self.set("engineOptions", engine_options)

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> _PopartOptions:
        """PopART's rewriting patterns; recorded."""
        self.set("patterns", patterns)
        return self.set("patternsLevel", level)

    def _freeze(self) -> None:
        self._is_frozen = True

    def __deepcopy__(self, memo: dict[int, Any]) -> _PopartOptions:
        twin = _PopartOptions()
        memo[id(self)] = twin
        for key, value in self.options.items():
            kind = type(value)
            twin.options[key] = kind(value) if kind in (dict, list, set) else value
        return twin

    def __repr__(self) -> str:
        return f"PopartOptions({self.options!r})"


class _DistributedOptions(OptionsDict):
    """Which of how many processes this one is; read from mpirun's environment."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0)
        self._read("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> _DistributedOptions:
        """One process, whatever the environment says."""
        return self.set(num_distributed_processes=1, distributed_process_id=0)

    def setEnvVarNames(
        self, num_processes: str, process_id: str
    ) -> _DistributedOptions:
        """Read count and id from these environment variables, if both are set."""
        self.checkIsFrozen()
        self._read(num_processes, process_id)
        return self

    def _read(self, num_processes: str, process_id: str) -> None:
        count, index = os.environ.get(num_processes), os.environ.get(process_id)
        if count is not None and index is not None:
            self.configureProcessId(int(index), int(count))

    def configureProcessId(
        self, process_id: int, num_processes: int
    ) -> _DistributedOptions:
        """This is process `process_id` (from 0) of `num_processes`."""
        check_int(process_id, "process_id", 0)
        check_int(num_processes, "num_processes", 1)
        check(
            process_id < num_processes,
            f"process id {process_id} must be below the count {num_processes}",
        )
        return self.set(
            num_distributed_processes=num_processes, distributed_process_id=process_id
        )

    @property
    def numProcesses(self) -> int:
        """How many processes there are."""
        return int(self._values["num_distributed_processes"])

    @property
    def processId(self) -> int:
        """Which one this is, from 0."""
        return int(self._values["distributed_process_id"])
