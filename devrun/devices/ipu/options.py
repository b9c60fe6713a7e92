"""From settings to `poptorch.Options`, one for training and one for evaluation.

Every public setter of `Options` and of its sections is a key: a nested dict is a
section, a list several arguments, `Enum.Member` a member of a PopTorch enum.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from devrun.data import streams
from devrun.devices.ipu.settings import OWN_KEYS, IPUSettings
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    UnknownNameError,
    UnsupportedFeatureError,
    nearest,
)
from devrun.step import UpdatePolicy

__all__ = [
    "MMCV_KEYS",
    "POLICY_KEYS",
    "check_names",
    "dtype_of",
    "inference_options",
    "micro_batches",
    "names_of",
    "training_options",
]

MMCV_KEYS = {
    "availableMemoryProportion": "share of an IPU's memory for temporaries: a number, "
    "or a list with one for each IPU",
    "executionStrategy": "`SameAsIpu`, `AutoIncrement`, `ShardedExecution`, or "
    "`{type, stages}` with block ids",
    "partialsType": "`half` or `float`, of partial sums in products",
}
"""Not setters of PopTorch, but MMCV's names for three of them."""

POLICY_KEYS = ("accum_type", "velocity_accum_type", "partials_type")
"""What `fp16` and `optimizer_config.options` may say about an IPU."""

_SECTIONS = (
    "Training",
    "Precision",
    "TensorLocations",
    "Distributed",
    "Jit",
    "_Popart",
)
_NO_SETTERS = frozenset(
    {"clone", "copy", "defaultOutputMode", "exists", "toDict", "update", "set"}
    | {"createOrSet", "deleteIfExists", "checkIsFrozen", "from_json", "freeze"}
)
_COUNTS = ("replicationFactor", "deviceIterations", "gradientAccumulation")
_ENUMS = {
    "outputMode": "OutputMode",
    "connectionType": "ConnectionType",
    "syncPattern": "SyncPattern",
    "accumulationAndReplicationReductionType": "ReductionType",
    "setMeanAccumulationAndReplicationReductionStrategy": "MeanReductionStrategy",
}
_DTYPES = {"half": torch.half, "float16": torch.half, "fp16": torch.half} | {
    "float": torch.float,
    "float32": torch.float,
    "fp32": torch.float,
}


def training_options(
    sdk: Any, settings: IPUSettings, policy: UpdatePolicy, seed: int
) -> Any:
    """`poptorch.Options` of the training executor, not frozen yet.

    Raises:
        ConfigError: an unknown option, a value PopTorch refuses, or a contradiction.
    """
    given = _nested(settings.training)
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
    if settings.deterministic and _get(given, "Precision", "enableStochasticRounding"):
        raise ConfigError(
            "ipu: deterministic and Precision.enableStochasticRounding contradict each "
            "other: remove one"
        )
    with streams.preserved():  # randomSeed also seeds the host, which is seeded
        options = sdk.Options()
        for owner, name, value in (
            (options, "replicationFactor", replicas),
            (options.Training, "gradientAccumulation", accumulate),
        ):
            _call(sdk, owner, name, 1 if value is None else value, name)
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
        _apply(sdk, options, given, settings.ipus)
    return options


def inference_options(sdk: Any, settings: IPUSettings, seed: int) -> Any:
    """`poptorch.Options` of the evaluation executor, not frozen yet."""
    with streams.preserved():
        options = sdk.Options()
        options.randomSeed(seed % 2**31)
        options.outputMode(sdk.OutputMode.All)
        options.setExecutionStrategy(sdk.ShardedExecution())
        _apply(sdk, options, _nested(settings.inference), settings.ipus)
    return options


def micro_batches(options: Any) -> int:
    """Micro-batches in what one call consumes."""
    shared = options.replication_factor // options.input_group_size
    steps = options.device_iterations * options.Training.gradient_accumulation
    return int(steps * shared)


def names_of(owner: Any) -> list[str]:
    """The setters of an options object or of one of its sections, and its sections."""
    sections = [name for name in _SECTIONS if hasattr(owner, name)]
    found = [
        name
        for name, _ in inspect.getmembers(type(owner), inspect.isfunction)
        if not name.startswith("_") and name not in _NO_SETTERS
    ]
    return [*found, *sections]


def check_names(sdk: Any, settings: IPUSettings) -> None:
    """Refuse a name that PopTorch does not have, before anything is built.

    Raises:
        UnknownNameError: with the nearest one.
    """
    options = sdk.Options()
    for given in (settings.training, settings.inference):
        for name, value in _nested(given).items():
            if name in MMCV_KEYS:
                continue
            known = names_of(options)
            if name not in known:
                hint = nearest(name, [*known, *OWN_KEYS, *MMCV_KEYS])
                raise UnknownNameError(f"device 'ipu' has no option {name!r}; {hint}")
            if name not in _SECTIONS:
                continue
            if not isinstance(value, Mapping):
                raise ConfigTypeError(
                    f"ipu: {name} must be a dict of its options, got {value!r}"
                )
            section = names_of(getattr(options, name))
            for part in value:
                if part not in section and name != "_Popart":
                    raise UnknownNameError(
                        f"ipu: {name} has no option {part!r}; {nearest(part, section)}"
                    )


def _nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which `Section.option` is a dict in a dict."""
    result: dict[str, Any] = {}
    for key, value in given.items():
        section, dot, name = str(key).partition(".")
        if dot:
            result[section] = {**(result.get(section) or {}), name: value}
        elif isinstance(value, Mapping) and key in _SECTIONS:
            result[section] = {**(result.get(section) or {}), **value}
        else:
            result[section] = value
    return result


def _one_value(name: str, value: Any, other: str, other_value: Any) -> Any:
    """What two places say; an error where they say different things."""
    if value is not None and other_value is not None and value != other_value:
        raise ConfigError(
            f"{name} is {value!r} and the ipu option {other} is {other_value!r}: give "
            "one of the two"
        )
    return other_value if value is None else value


def _apply(sdk: Any, options: Any, given: Mapping[str, Any], ipus: int | None) -> None:
    for name, value in given.items():
        if name in MMCV_KEYS:
            _mmcv(sdk, options, name, value, ipus)
        elif name in _SECTIONS:
            section = getattr(options, name)
            for part, inner in value.items():
                if hasattr(section, part):
                    _call(sdk, section, part, inner, f"{name}.{part}")
                else:  # only `_Popart` gets here: a session option of PopART
                    section.set(part, inner)
        else:
            _call(sdk, options, name, value, name)


def _call(sdk: Any, owner: Any, name: str, value: Any, path: str) -> None:
    if name in _COUNTS and (type(value) is not int or value < 1):
        raise ConfigError(f"ipu: {path} must be an integer of 1 or more, got {value!r}")
    arguments = value if isinstance(value, (list, tuple)) else [value]
    if name in ("updatableNamedBuffers", "sourceLocationExcludes"):
        arguments = [value]  # whose one argument is a list
    try:
        getattr(owner, name)(*(_argument(sdk, name, each) for each in arguments))
    except (AssertionError, AttributeError, TypeError, ValueError, sdk.Error) as error:
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"ipu: {path}: PopTorch refuses {value!r}: {reason}") from (
            error
        )


def _argument(sdk: Any, name: str, value: Any) -> Any:
    """One argument of a setter as PopTorch wants it."""
    if name.endswith("Location") and isinstance(value, Mapping):
        settings = sdk.TensorLocationSettings()
        for key, inner in value.items():
            known = names_of(settings)
            if key not in known:
                raise ConfigError(f"ipu: {name} has no {key!r}; {nearest(key, known)}")
            getattr(settings, key)(inner)
        return settings
    if name == "setPartialsType":
        return _dtype("Precision.setPartialsType", value)
    if not isinstance(value, str):
        return value
    kind, dot, member = value.rpartition(".")
    kind = kind or _ENUMS.get(name, "")
    found = getattr(sdk, kind, None) if dot or name in _ENUMS else None
    members = getattr(found, "__members__", None)
    if members is None:
        return value
    by_lower = {each.lower(): each for each in members}
    if member.lower() not in by_lower:
        raise ConfigError(
            f"ipu: {name} must be one of {', '.join(members)}, got {value!r}"
        )
    return members[by_lower[member.lower()]]


def _mmcv(sdk: Any, options: Any, name: str, value: Any, ipus: int | None) -> None:
    if name == "partialsType":
        options.Precision.setPartialsType(_dtype(name, value))
    elif name == "executionStrategy":
        options.setExecutionStrategy(_strategy(sdk, value))
    else:
        options.setAvailableMemoryProportion(_proportions(value, ipus))


def _proportions(value: Any, ipus: int | None) -> dict[str, float]:
    if isinstance(value, Mapping):
        shares = dict(value)
    elif isinstance(value, (list, tuple)):
        shares = {f"IPU{index}": share for index, share in enumerate(value)}
    else:
        shares = {f"IPU{index}": value for index in range(ipus or 1)}
    if ipus is not None and len(shares) > ipus:
        raise ConfigError(
            f"ipu: availableMemoryProportion has {len(shares)} values, but the model "
            f"is on {ipus} IPU(s): give one for each, or a single number"
        )
    for key, share in shares.items():
        number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not str(key).removeprefix("IPU").isdigit():
            raise ConfigError(
                "ipu: availableMemoryProportion has the keys IPU0, IPU1, ...; "
                f"got {key!r}"
            )
        if not number or not 0 < share <= 1:
            raise ConfigError(
                "ipu: availableMemoryProportion must be above 0 and at most 1 for each "
                f"IPU, got {share!r} for {key}"
            )
    return shares


def _strategy(sdk: Any, value: Any) -> Any:
    kinds = {"PipelinedExecution": sdk.PipelinedExecution} | {
        "ShardedExecution": sdk.ShardedExecution
    }
    if isinstance(value, Mapping) and set(value) <= {"type", "stages"}:
        kind, stages = value.get("type", "PipelinedExecution"), value.get("stages")
        if kind in kinds and isinstance(stages, (list, tuple)) and stages:
            try:
                return kinds[kind](*(_stage(sdk, stage) for stage in stages))
            except (AssertionError, sdk.Error) as error:
                reason = " ".join(str(error).split())
                raise ConfigError(f"ipu: executionStrategy: {reason}") from error
    elif value in sdk.AutoStage.__members__:
        return sdk.PipelinedExecution(sdk.AutoStage[value])
    elif value in kinds:
        return kinds[value]()
    accepted = [*sdk.AutoStage.__members__, *kinds]
    raise UnsupportedFeatureError(
        f"ipu: executionStrategy {value!r}; {nearest(str(value), accepted)} "
        "(or {type, stages: [[block ids], ...]})"
    )


def _stage(sdk: Any, stage: Any) -> Any:
    blocks: Sequence[Any] = stage if isinstance(stage, (list, tuple)) else [stage]
    return sdk.Stage(*(str(block) for block in blocks))


def _dtype(name: str, value: Any) -> torch.dtype:
    found = _DTYPES.get(str(value).removeprefix("torch."))
    if found is None:
        raise ConfigError(f"ipu: {name} must be half or float, got {value!r}")
    return found


def dtype_of(name: str, value: Any) -> torch.dtype | None:
    """A type named in `fp16`, such as `accum_type`; None stays None.

    Raises:
        ConfigError: neither half nor float.
    """
    return None if value is None else _dtype(name, value)


def _get(given: Mapping[str, Any], section: str, name: str) -> Any:
    return (given.get(section) or {}).get(name)
