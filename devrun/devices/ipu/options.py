"""The `ipu:` section of a config, and the `poptorch.Options` that it makes.

A nested dict is a section of `Options`, a list several arguments, `Enum.Member` a
member of a PopTorch enum.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from devrun.construct import where
from devrun.data import rng
from devrun.devices.options import check_performance
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    DevrunError,
    UnknownNameError,
    UnsupportedFeatureError,
    nearest,
)
from devrun.python38 import unprefixed
from devrun.step import UpdatePolicy
from devrun.text import joined

OWN_KEYS = {
    "emulate": "use the emulated PopTorch",
    "replicas": "data-parallel copies in training, as `--ipu-replicas`",
    "evaluate_on": "`device`, or `host` for the CPU",
    "num_ipus": "IPUs of one replica",
    "train_split_edges": "`{layer_to_call, ipu_id, user_id?}` for each block",
    "train_ckpt_nodes": "layers whose outputs are kept; the rest is recomputed",
    "train_cfg": "options for training only",
    "eval_cfg": "options for evaluation only",
}
"""What devrun reads itself; every other key is an option of PopTorch."""
MMCV_KEYS = {
    "availableMemoryProportion": "share of an IPU's memory for temporaries: a number, "
    "a list with one for each IPU, or `{IPU0: 0.3, ...}`",
    "executionStrategy": "`SameAsIpu`, `AutoIncrement` or `ShardedExecution`",
    "partialsType": "`half` or `float`, of partial sums in products",
}
"""Not setters of PopTorch, but MMCV's names for three of them."""
MOST_IPUS = 64
"""What one process can have."""

_SECTIONS = (
    "Training",
    "Precision",
    "TensorLocations",
    "Distributed",
    "Jit",
    "_Popart",
)
"""Options that have options of their own."""
_TRAINING_ONLY = (
    "Training",
    "outputMode",
    "replicationFactor",
    "executionStrategy",
    "inputReplicaGrouping",
)
"""Options that evaluation does not take over from those common to both."""
_ELSEWHERE = ("cudnn_benchmark", "backend", "timeout")
"""Said to other devices in the same config; there is nothing to set here."""
_NO_SETTERS = frozenset(
    {"clone", "copy", "defaultOutputMode", "exists", "toDict", "update", "set"}
    | {"createOrSet", "deleteIfExists", "checkIsFrozen", "from_json", "freeze"}
    | {"setAvailableMemoryProportion", "setExecutionStrategy", "setPartialsType"}
)
_COUNTS = ("replicationFactor", "deviceIterations", "gradientAccumulation")
_DTYPES = {"half": torch.half, "float16": torch.half, "fp16": torch.half}
_DTYPES.update({"float": torch.float, "float32": torch.float, "fp32": torch.float})


@dataclass(frozen=True)
class IPUSettings:
    """One run's choices; `training` and `inference` are PopTorch's options, those of
    a section as `Section.option`."""

    emulate: bool = False
    replicas: int | None = None
    evaluate_on: str = "device"
    num_ipus: int | None = None
    train_split_edges: list[Mapping[str, Any]] = field(default_factory=list)
    train_ckpt_nodes: list[str] = field(default_factory=list)
    deterministic: bool = False
    performance: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    inference: Mapping[str, Any] = field(default_factory=dict)


def parse_settings(cfg: Mapping[str, Any]) -> IPUSettings:
    """`cfg`, which is left as it was, with MMCV's `options_cfg` and `ipu_model_cfg`.

    Raises:
        ConfigError: a value out of range, or two that contradict each other.
    """
    ignored = ("type", *_ELSEWHERE)
    values = {k: v for k, v in cfg.items() if v is not None and k not in ignored}
    for name in ("options_cfg", "ipu_model_cfg"):
        _merge(values, values.pop(name, {}), f"runner.{name}")
    train, evaluation = (_phase(values, name) for name in ("train_cfg", "eval_cfg"))
    own = {
        name: values.pop(name)
        for name in (*OWN_KEYS, "deterministic", "performance")
        if name in values
    }
    _check(own)
    for name in map(_head, evaluation):
        if name in ("Training", "outputMode"):
            raise _refused(
                name,
                "is not for evaluation, which has no gradients and returns the outputs "
                "of every sample: remove it from eval_cfg",
            )
    common = _flat(values)
    shared = {k: v for k, v in common.items() if _head(k) not in _TRAINING_ONLY}
    return IPUSettings(
        **own, training={**common, **train}, inference={**shared, **evaluation}
    )


def training_options(
    sdk: Any,
    settings: IPUSettings,
    policy: UpdatePolicy,
    seed: int,
    ipus: int | None = None,
) -> Any:
    """`poptorch.Options` of the training executor, not frozen yet.

    Args:
        ipus: those of one replica; None where that is not known.

    Raises:
        ConfigError: an unknown option, a value PopTorch refuses, or a contradiction.
    """
    given = dict(settings.training)
    replicas = _one_value(
        "replicas",
        settings.replicas,
        "replicationFactor",
        given.pop("replicationFactor", None),
    )
    accumulate = _one_value(
        "cumulative_iters",
        policy.accumulate if policy.accumulate > 1 else None,
        "Training.gradientAccumulation",
        given.pop("Training.gradientAccumulation", None),
    )
    rounding = given.get("Precision.enableStochasticRounding")
    if settings.deterministic and rounding:
        raise ConfigError(
            "ipu: deterministic and Precision.enableStochasticRounding contradict each "
            "other: remove one"
        )
    parts = given.get("availableMemoryProportion")
    if ipus and isinstance(parts, (list, tuple)) and len(parts) != ipus:
        raise _refused(
            "availableMemoryProportion",
            f"has {len(parts)} values, but the model is on {ipus} IPUs: give one for "
            "each, or a single number",
        )
    with rng.preserved():  # randomSeed also seeds the host, which is seeded
        options = sdk.Options()
        replicas = 1 if replicas is None else replicas
        accumulate = 1 if accumulate is None else accumulate
        _call(sdk, options, "replicationFactor", replicas)
        _call(sdk, options.Training, "gradientAccumulation", accumulate)
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
        _apply(sdk, options, given, ipus)
    if (count := options.Distributed.numProcesses) > 1:
        raise UnsupportedFeatureError(
            f"PopTorch counts {count} processes (mpirun, or Distributed.configure"
            "ProcessId), but an IPU run is one with all its replicas: start one, with "
            "--ipu-replicas N"
        )
    return options


def inference_options(sdk: Any, settings: IPUSettings, seed: int) -> Any:
    """`poptorch.Options` of the evaluation executor, not frozen yet.

    Raises:
        ConfigError: an unknown option, or a value PopTorch refuses.
    """
    with rng.preserved():
        options = sdk.Options()
        options.randomSeed(seed % 2**31)
        options.outputMode(sdk.OutputMode.All)
        options.setExecutionStrategy(sdk.ShardedExecution())
        _apply(sdk, options, settings.inference, None)
    return options


def micro_batches(options: Any) -> int:
    """Micro-batches in what one call consumes."""
    shared = options.replication_factor // options.input_group_size
    steps = options.device_iterations * options.Training.gradient_accumulation
    return int(steps * shared)


def names_of(owner: Any) -> list[str]:
    """The setters of an options object or of one of its sections, and its sections."""
    found = [
        name
        for name, _ in inspect.getmembers(type(owner), inspect.isfunction)
        if not name.startswith("_") and name not in _NO_SETTERS
    ]
    return [*found, *(name for name in _SECTIONS if hasattr(owner, name))]


def dtype_of(name: str, value: Any) -> torch.dtype:
    """A type named in a config, such as `accum_type`.

    Raises:
        ConfigError: neither half nor float.
    """
    found = _DTYPES.get(unprefixed(str(value), "torch."))
    if found is None:
        raise _refused(name, f"must be half or float, got {value!r}")
    return found


def _refused(
    option: str, clause: str, kind: type[DevrunError] = ConfigError
) -> DevrunError:
    """The error of an `option` of this device; `clause` follows its name."""
    return kind(f"{option} {clause}", key=option, subject="ipu")


def _merge(values: dict[str, Any], given: Any, source: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigTypeError(f"{source} must be a dict, got {given!r}")
    for key, value in given.items():
        if key in values and values[key] != value:
            raise ConfigError(
                f"{key!r} is {values[key]!r} for the device and {value!r} in {source}: "
                "give it once",
                place=where(given, key),
            )
        values[key] = value


def _phase(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The options of `train_cfg` or `eval_cfg`, taken out of `values`."""
    options = values.pop(name, None) or {}
    if not isinstance(options, Mapping):
        raise _refused(name, f"must be a dict, got {options!r}", ConfigTypeError)
    for key in options:
        if key in OWN_KEYS:
            raise _refused(key, f"is for the whole run: move it out of {name}")
    return _flat(options)


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which what is in the dict of a section is `Section.option`."""
    result: dict[str, Any] = {}
    for key, value in given.items():
        if key not in _SECTIONS:
            result[str(key)] = value
        elif isinstance(value, Mapping):
            result.update((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            wrong = f"must be a dict of its options, got {value!r}"
            raise _refused(key, wrong, ConfigTypeError)
    return result


def _head(path: str) -> str:
    return path.partition(".")[0]


def _check(own: Mapping[str, Any]) -> None:
    for name in ("emulate", "deterministic"):
        if not isinstance(own.get(name, False), bool):
            wrong = f"must be true or false, got {own[name]!r}"
            raise _refused(name, wrong, ConfigTypeError)
    for name in ("replicas", "num_ipus"):
        value = own.get(name, 1)
        if type(value) is not int or value < 1:
            raise _refused(name, f"must be 1 or more, got {value!r}", ConfigTypeError)
    for name in ("train_split_edges", "train_ckpt_nodes"):
        if not isinstance(own.get(name, []), (list, tuple)):
            raise _refused(name, f"must be a list, got {own[name]!r}", ConfigTypeError)
    where = own.get("evaluate_on", "device")
    if where not in ("device", "host"):
        raise _refused("evaluate_on", f"must be device or host, got {where!r}")
    if own.get("num_ipus", 1) > 1 and not own.get("train_split_edges"):
        raise _refused(
            "num_ipus",
            f"is {own['num_ipus']}, but nothing divides the model: add "
            "train_split_edges; devrun check CONFIG --device ipu says balanced ones",
        )
    check_performance(own.get("performance"), "ipu")


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
        if name == "partialsType":
            options.Precision.setPartialsType(dtype_of(name, value))
        elif name == "executionStrategy":
            options.setExecutionStrategy(_strategy(sdk, value))
        elif name == "availableMemoryProportion":
            parts = _proportions(value, ipus or MOST_IPUS)
            _call(sdk, options, "setAvailableMemoryProportion", parts)
        else:
            _set(sdk, options, name, value)


def _set(sdk: Any, options: Any, path: str, value: Any) -> None:
    """Call the setter of `options`, or of a section of it."""
    section, dot, name = path.partition(".")
    if not dot or section not in _SECTIONS:
        section, name = "", path
    owner = getattr(options, section) if section else options
    known = names_of(owner)
    if name in known:
        _call(sdk, owner, name, value, path)
    elif section == "_Popart":  # a session option of PopART
        owner.set(name, value)
    elif section:
        wrong = f"has no option {name!r}; {nearest(name, known)}"
        raise _refused(section, wrong, UnknownNameError)
    else:
        hint = nearest(name, [*known, *OWN_KEYS, *MMCV_KEYS])
        raise UnknownNameError(f"device 'ipu' has no option {name!r}; {hint}", key=name)


def _call(sdk: Any, owner: Any, name: str, value: Any, path: str | None = None) -> None:
    path = path or name
    if name in _COUNTS and (type(value) is not int or value < 1):
        raise _refused(path, f"must be an integer of 1 or more, got {value!r}")
    arguments = value if isinstance(value, (list, tuple)) else [value]
    if name in ("updatableNamedBuffers", "sourceLocationExcludes"):
        arguments = [value]  # whose one argument is a list
    try:
        getattr(owner, name)(*(_argument(sdk, name, each) for each in arguments))
    except (
        AssertionError,
        AttributeError,
        RuntimeError,
        TypeError,
        ValueError,
        sdk.Error,
    ) as error:
        reason = joined(error) or type(error).__name__
        raise _refused(
            path, f"is not possible: PopTorch refuses {value!r}: {reason}"
        ) from error


def _argument(sdk: Any, name: str, value: Any) -> Any:
    """One argument of a setter in the type that PopTorch expects."""
    if name.endswith("Location") and isinstance(value, Mapping):
        settings = sdk.TensorLocationSettings()
        for key, inner in value.items():
            getattr(settings, key)(inner)
        return settings
    kind, _, member = value.rpartition(".") if isinstance(value, str) else ("", "", "")
    members = getattr(getattr(sdk, kind, None), "__members__", {})
    return members.get(member, value)


def _proportions(value: Any, ipus: int) -> dict[str, Any]:
    if isinstance(value, Mapping):
        parts = dict(value)
    else:
        each = value if isinstance(value, (list, tuple)) else [value] * ipus
        parts = {f"IPU{index}": part for index, part in enumerate(each)}
    for key, part in parts.items():
        number = isinstance(part, (int, float)) and not isinstance(part, bool)
        if not number or not 0 < part <= 1:
            raise _refused(
                "availableMemoryProportion",
                f"must be above 0 and at most 1 for each IPU, got {part!r} for {key}",
            )
    return parts


def _strategy(sdk: Any, value: Any) -> Any:
    if value == "ShardedExecution":
        return sdk.ShardedExecution()
    stages = sdk.AutoStage.__members__
    if value not in stages:
        hint = nearest(str(value), [*stages, "ShardedExecution"])
        raise _refused("executionStrategy", f"{value!r}; {hint}")
    return sdk.PipelinedExecution(stages[value])
