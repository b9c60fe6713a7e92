"""What can be refused before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devrun.devices.ipu.settings import IPUSettings
from devrun.errors import (
    ConfigError,
    DeviceUnavailableError,
    UnsupportedFeatureError,
)
from devrun.step import UpdatePolicy

__all__ = ["check_pipeline", "check_policy", "check_size"]


def check_policy(policy: UpdatePolicy, optimizer: Any) -> None:
    """Refuse an update that an IPU cannot make.

    Raises:
        UnsupportedFeatureError, ConfigError: naming the part of the policy.
    """
    if policy.precision not in ("fp32", "fp16"):
        raise UnsupportedFeatureError(
            f"precision {policy.precision!r} is not one of an IPU: use fp32 or fp16"
        )
    if isinstance(optimizer, Mapping):
        raise UnsupportedFeatureError(
            f"several optimizers ({', '.join(map(str, optimizer))}) cannot run on an "
            "IPU: use one, with parameter groups"
        )
    if policy.owner in ("hook", "model"):
        who = "an optimizer hook" if policy.owner == "hook" else "the model"
        raise UnsupportedFeatureError(
            f"{who} cannot update the weights on an IPU, which does it in the compiled "
            "graph: describe the update in optimizer_config"
        )
    spike = (policy.spike or {}).get("action")
    if policy.micro_batch is not None:
        raise UnsupportedFeatureError(
            "micro_batch is not possible on an IPU, where a graph has one batch size: "
            "set samples_per_gpu to the micro-batch, and cumulative_iters"
        )
    if "skip" in (policy.nonfinite, spike):
        raise UnsupportedFeatureError(
            "'skip' (nonfinite, spike) is not possible on an IPU, where the update is "
            "done when the loss comes back: use 'stop', 'warn', 'rollback' or 'ignore'"
        )
    if policy.detect_anomalous_params:
        raise UnsupportedFeatureError(
            "detect_anomalous_params needs gradients on the host, which an IPU does "
            "not give: run a few iterations with --device cpu for it"
        )


def check_pipeline(settings: IPUSettings, options: Any, sdk: Any) -> None:
    """Refuse an accumulation that leaves stages of the pipeline without work.

    Raises:
        ConfigError: with the least that is needed.
    """
    stages = settings.ipus or 1
    strategy = options._execution_strategy
    pipelined = isinstance(strategy, sdk.PipelinedExecution)
    # PopTorch derives the sharded strategy from the pipelined one
    if stages < 2 or not pipelined or isinstance(strategy, sdk.ShardedExecution):
        return
    steps, needed = options.Training.gradient_accumulation, 2 * stages - 1
    if steps < needed:
        raise ConfigError(
            f"gradient accumulation {steps} is too small for a pipeline of {stages} "
            f"IPUs, which needs {needed} (2 x {stages} - 1) or more: set "
            "cumulative_iters or Training.gradientAccumulation, or executionStrategy "
            "ShardedExecution"
        )


def check_size(settings: IPUSettings, options: Any, sdk: Any) -> None:
    """Refuse a run for which the machine has too few IPUs.

    Raises:
        DeviceUnavailableError: with the number wanted.
        ConfigError: more than one process can have.
    """
    if options.connection_type == sdk.ConnectionType.Never:
        return
    each, replicas = settings.ipus or 1, options.replication_factor
    wanted = 1 << (each * replicas - 1).bit_length()  # reserved in powers of two
    if wanted > 64:
        raise ConfigError(
            f"{each * replicas} IPUs ({each} per replica x {replicas} replicas) are "
            "more than the 64 that one process can have: use fewer replicas"
        )
    if not sdk.ipuHardwareIsAvailable(wanted):
        raise DeviceUnavailableError(
            f"the run needs {wanted} IPUs ({each} per replica x {replicas} replicas), "
            "which the machine does not have: use fewer replicas (--ipu-replicas) or "
            "IPUs per replica"
        )
