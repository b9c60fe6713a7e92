"""What can be refused before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devrun.devices.ipu.setters import MOST_IPUS
from devrun.errors import (
    ConfigError,
    DeviceUnavailableError,
    UnsupportedFeatureError,
)
from devrun.step import UpdatePolicy


def check_policy(policy: UpdatePolicy, optimizer: Any) -> None:
    """Refuse an update that an IPU cannot make.

    Raises:
        UnsupportedFeatureError, ConfigError: naming the part of the policy.
    """
    if policy.precision not in ("fp32", "fp16"):
        raise UnsupportedFeatureError(
            f"precision {policy.precision!r} is not one of an IPU: use fp32 or fp16",
            key="precision",
        )
    if isinstance(optimizer, Mapping):
        raise UnsupportedFeatureError(
            f"several optimizers ({', '.join(map(str, optimizer))}) cannot run on an "
            "IPU: use one, with parameter groups",
            key="optimizer",
        )
    if policy.owner in ("hook", "model"):
        who = "an optimizer hook" if policy.owner == "hook" else "the model"
        raise UnsupportedFeatureError(
            f"{who} cannot update the weights on an IPU, which does it in the compiled "
            "graph: describe the update in optimizer_config",
            key="optimizer_config",
        )
    spike = (policy.spike or {}).get("action")
    if policy.micro_batch is not None:
        raise UnsupportedFeatureError(
            "micro_batch is not possible on an IPU, where a graph has one batch size: "
            "set samples_per_gpu to the micro-batch, and cumulative_iters",
            key="micro_batch",
        )
    if "skip" in (policy.nonfinite, spike):
        raise UnsupportedFeatureError(
            "'skip' (nonfinite, spike) is not possible on an IPU, where the update is "
            "done when the loss comes back: use 'stop', 'warn', 'rollback' or 'ignore'",
            key="nonfinite" if policy.nonfinite == "skip" else "spike",
        )
    if policy.detect_anomalous_params:
        raise UnsupportedFeatureError(
            "detect_anomalous_params needs gradients on the host, which an IPU does "
            "not give: run a few iterations with --device cpu for it",
            key="detect_anomalous_params",
        )


def check_processes(options: Any) -> None:
    """Refuse what PopTorch takes for one process of several.

    Raises:
        UnsupportedFeatureError: with their number.
    """
    if (count := options.Distributed.numProcesses) > 1:
        raise UnsupportedFeatureError(
            f"PopTorch counts {count} processes (mpirun, or Distributed.configure"
            "ProcessId), but an IPU run is one with all its replicas: start one, with "
            "--ipu-replicas N"
        )


def check_pipeline(options: Any, ipus: int | None, sdk: Any) -> None:
    """Refuse an accumulation that leaves stages of the pipeline without work.

    Args:
        ipus: those of one replica, each a stage; None where that is not known.

    Raises:
        ConfigError: with the least that is needed.
    """
    stages, steps = ipus or 1, options.Training.gradient_accumulation
    needed = 2 * stages - 1
    if stages > 1 and _pipelined(options, sdk) and steps < needed:
        raise ConfigError(
            f"gradient accumulation {steps} is too small for a pipeline of {stages} "
            f"IPUs, which needs {needed} (2 x {stages} - 1) or more: set "
            "cumulative_iters or Training.gradientAccumulation, or executionStrategy "
            "ShardedExecution"
        )


def check_evaluation(options: Any, ipus: int | None, sdk: Any) -> None:
    """Refuse an evaluation that cannot run, before the training that it comes after.

    Raises:
        ConfigError, DeviceUnavailableError: what it lacks.
    """
    stages, steps = ipus or 1, options.device_iterations
    if stages > 1 and _pipelined(options, sdk) and steps < stages:
        raise ConfigError(
            f"ipu: evaluation has a pipeline of {stages} IPUs, which needs "
            f"deviceIterations {stages} or more, not {steps}: set it in eval_cfg, or "
            "leave out its executionStrategy"
        )
    check_size(options, ipus, sdk, " in evaluation")


def check_size(options: Any, ipus: int | None, sdk: Any, when: str = "") -> None:
    """Refuse a run for which the machine has too few IPUs.

    Raises:
        DeviceUnavailableError: with the number wanted.
        ConfigError: more than one process can have, or no power of two.
    """
    if options.connection_type == sdk.ConnectionType.Never:
        return
    each, replicas = ipus or 1, options.replication_factor
    used = each * replicas
    wanted = 1 << (used - 1).bit_length()
    factors = f"{each} per replica x {replicas} replicas"
    if wanted > MOST_IPUS:
        raise ConfigError(
            f"{used} IPUs ({factors}){when} are more than the {MOST_IPUS} that one "
            "process can have: use fewer replicas"
        )
    if ipus and wanted != used and not options.auto_round_num_ipus:
        raise ConfigError(
            f"the run needs {used} IPUs ({factors}){when}, but they are reserved in "
            f"powers of two: use {wanted}, or set autoRoundNumIPUs: true to leave some "
            "idle"
        )
    if not sdk.ipuHardwareIsAvailable(wanted):
        raise DeviceUnavailableError(
            f"the run needs {wanted} IPUs ({factors}){when}, which the machine does "
            "not have: use fewer replicas (--ipu-replicas) or IPUs per replica"
        )


def partial_outputs(options: Any, sdk: Any) -> str | None:
    """What to say where training returns the outputs of some micro-batches only."""
    iterations = options.device_iterations
    steps = iterations * options.Training.gradient_accumulation
    mode = options.output_mode
    if mode == sdk.OutputMode.Final and steps > 1:
        kept = f"the last of {steps} micro-batches"
    elif mode == sdk.OutputMode.EveryN and options.output_return_period > 1:
        kept = f"one of each {options.output_return_period} device iterations"
    else:
        return None
    return (
        f"ipu: outputMode {mode.name} returns {kept}, so that is all that losses are "
        "logged of and checked for NaN; leave it out (Sum) for means over all"
    )


def _pipelined(options: Any, sdk: Any) -> bool:
    strategy = options._execution_strategy
    # PopTorch derives the sharded strategy from the pipelined one
    return isinstance(strategy, sdk.PipelinedExecution) and not isinstance(
        strategy, sdk.ShardedExecution
    )
