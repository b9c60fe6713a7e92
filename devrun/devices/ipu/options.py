"""From settings to `poptorch.Options`, one for training and one for evaluation."""

from __future__ import annotations

from typing import Any

from devrun.data import rng
from devrun.devices.ipu.setters import apply, call, nested
from devrun.devices.ipu.settings import IPUSettings
from devrun.errors import ConfigError
from devrun.step import UpdatePolicy

POLICY_KEYS = ("accum_type", "velocity_accum_type", "partials_type")
"""What `fp16` and `optimizer_config.options` may say about an IPU."""


def training_options(
    sdk: Any,
    settings: IPUSettings,
    policy: UpdatePolicy,
    seed: int,
    ipus: int | None = None,
    popdist: Any = None,
) -> Any:
    """`poptorch.Options` of the training executor, not frozen yet.

    Args:
        ipus: those of one replica; None where that is not known.
        popdist: the module, where poprun started this process and chose the replicas.

    Raises:
        ConfigError: an unknown option, a value PopTorch refuses, or a contradiction.
    """
    given = nested(settings.training)
    replicas = _one_value(
        "replicas",
        settings.replicas,
        "replicationFactor",
        given.pop("replicationFactor", None),
    )
    section = dict(given.get("Training") or {})
    accumulate = _one_value(
        "cumulative_iters",
        policy.accumulate if policy.accumulate > 1 else None,
        "Training.gradientAccumulation",
        section.pop("gradientAccumulation", None),
    )
    if section or "Training" in given:
        given["Training"] = section
    partials = policy.options.get("partials_type")
    if partials is not None:
        given["partialsType"] = _one_value(
            "fp16.partials_type", partials, "partialsType", given.get("partialsType")
        )
    precision = given.get("Precision") or {}
    if settings.deterministic and precision.get("enableStochasticRounding"):
        raise ConfigError(
            "ipu: deterministic and Precision.enableStochasticRounding contradict each "
            "other: remove one"
        )
    with rng.preserved():  # randomSeed also seeds the host, which is seeded
        options = _new(sdk, popdist, ipus, replicas)
        steps = 1 if accumulate is None else accumulate
        call(
            sdk, options.Training, "gradientAccumulation", steps, "gradientAccumulation"
        )
        options.randomSeed(seed % 2**31)
        options.outputMode(sdk.OutputMode.Sum)
        options._Popart.set("disableGradAccumulationTensorStreams", True)
        if policy.precision == "fp16":
            options.Precision.enableStochasticRounding(not settings.deterministic)
            if policy.loss_scale == "dynamic":
                options.Training.setAutomaticLossScaling(True)
        if options.replication_factor > 1:
            # each replica has running statistics of its own, as on one device each
            options.broadcastBuffers(False)
        shares = given.get("availableMemoryProportion")
        if ipus and isinstance(shares, (list, tuple)) and len(shares) < ipus:
            raise ConfigError(
                f"ipu: availableMemoryProportion has {len(shares)} values, but the "
                f"model is on {ipus} IPUs: give one for each, or a single number"
            )
        apply(sdk, options, given, ipus)
    return options


def inference_options(
    sdk: Any,
    settings: IPUSettings,
    seed: int,
    ipus: int | None = None,
    popdist: Any = None,
) -> Any:
    """`poptorch.Options` of the evaluation executor, not frozen yet.

    Args:
        ipus: the most of one replica in training or evaluation, as options that are
            common to both speak of both; None where that is not known.
    """
    given = nested(settings.inference)
    replicas = given.pop("replicationFactor", None)
    with rng.preserved():
        options = _new(sdk, popdist, ipus, replicas)
        options.randomSeed(seed % 2**31)
        options.outputMode(sdk.OutputMode.All)
        options.setExecutionStrategy(sdk.ShardedExecution())
        apply(sdk, options, given, ipus)
    return options


def _new(sdk: Any, popdist: Any, ipus: int | None, replicas: int | None) -> Any:
    """Options with `replicas`, 1 by default, or as many as poprun chose."""
    if popdist is None:
        options = sdk.Options()
        given = 1 if replicas is None else replicas
        call(sdk, options, "replicationFactor", given, "replicationFactor")
        return options
    local, each = popdist.getNumLocalReplicas(), popdist.getNumIpusPerReplica()
    for name, here, told in (
        ("--num-replicas", replicas, local),
        ("--ipus-per-replica", ipus, each),
    ):
        if here not in (None, told):
            raise ConfigError(
                f"poprun was given {name} {told}, but the config says {here}: give one "
                "number"
            )
    return popdist.poptorch.Options(ipus_per_replica=each)


def micro_batches(options: Any) -> int:
    """Micro-batches in what one call consumes."""
    shared = options.replication_factor // options.input_group_size
    steps = options.device_iterations * options.Training.gradient_accumulation
    return int(steps * shared)


def _one_value(name: str, value: Any, other: str, other_value: Any) -> Any:
    """What two places say; an error where they say different things."""
    if value is not None and other_value is not None and value != other_value:
        raise ConfigError(
            f"{name} is {value!r} and the ipu option {other} is {other_value!r}: give "
            "one of the two"
        )
    return other_value if value is None else value
