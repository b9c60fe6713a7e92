"""Values of a config as calls of PopTorch's setters.

A nested dict is a section of `Options`, a list several arguments, `Enum.Member` a
member of a PopTorch enum.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from devrun.devices.ipu.settings import OWN_KEYS, SECTIONS, IPUSettings, refused
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    UnknownNameError,
    UnsupportedFeatureError,
    nearest,
)
from devrun.text import joined

MMCV_KEYS = {
    "availableMemoryProportion": "share of an IPU's memory for temporaries: a number, "
    "a list with one for each IPU, or `{IPU0: 0.3, ...}`",
    "executionStrategy": "`SameAsIpu`, `AutoIncrement`, `ShardedExecution`, or "
    "`{type, stages}` with block ids",
    "partialsType": "`half` or `float`, of partial sums in products",
}
"""Not setters of PopTorch, but MMCV's names for three of them."""

MOST_IPUS = 64
"""What one process can have."""

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


def names_of(owner: Any) -> list[str]:
    """The setters of an options object or of one of its sections, and its sections."""
    sections = [name for name in SECTIONS if hasattr(owner, name)]
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
        for name, value in nested(given).items():
            if name in MMCV_KEYS:
                continue
            known = names_of(options)
            if name not in known:
                hint = nearest(name, [*known, *OWN_KEYS, *MMCV_KEYS])
                raise UnknownNameError(
                    f"device 'ipu' has no option {name!r}; {hint}", key=name
                )
            if name not in SECTIONS:
                continue
            if not isinstance(value, Mapping):
                raise refused(
                    name,
                    f"must be a dict of its options, got {value!r}",
                    ConfigTypeError,
                )
            section = names_of(getattr(options, name))
            for part in value:
                if part not in section and name != "_Popart":
                    raise refused(
                        name,
                        f"has no option {part!r}; {nearest(part, section)}",
                        UnknownNameError,
                    )


def nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which `Section.option` is a dict in a dict."""
    result: dict[str, Any] = {}
    for key, value in given.items():
        section, dot, name = str(key).partition(".")
        if dot:
            result[section] = {**(result.get(section) or {}), name: value}
        elif isinstance(value, Mapping) and key in SECTIONS:
            result[section] = {**(result.get(section) or {}), **value}
        else:
            result[section] = value
    return result


def apply(sdk: Any, options: Any, given: Mapping[str, Any], ipus: int | None) -> None:
    for name, value in given.items():
        if name in MMCV_KEYS:
            _mmcv(sdk, options, name, value, ipus)
        elif name in SECTIONS:
            section = getattr(options, name)
            for part, inner in value.items():
                if hasattr(section, part):
                    call(sdk, section, part, inner, f"{name}.{part}")
                else:  # only `_Popart` gets here: a session option of PopART
                    section.set(part, inner)
        else:
            call(sdk, options, name, value, name)


def call(sdk: Any, owner: Any, name: str, value: Any, path: str) -> None:
    if name in _COUNTS and (type(value) is not int or value < 1):
        raise refused(path, f"must be an integer of 1 or more, got {value!r}")
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
        if isinstance(error, ConfigError):
            raise
        reason = joined(error) or type(error).__name__
        raise refused(
            path, f"is not possible: PopTorch refuses {value!r}: {reason}"
        ) from error


def _argument(sdk: Any, name: str, value: Any) -> Any:
    """One argument of a setter in the type that PopTorch expects."""
    if name.endswith("Location") and isinstance(value, Mapping):
        settings = sdk.TensorLocationSettings()
        for key, inner in value.items():
            known = names_of(settings)
            if key not in known:
                raise refused(name, f"has no {key!r}; {nearest(key, known)}")
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
        raise refused(name, f"must be one of {', '.join(members)}, got {value!r}")
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
        shares = {f"IPU{str(key).removeprefix('IPU')}": value[key] for key in value}
    elif isinstance(value, (list, tuple)):
        shares = {f"IPU{index}": share for index, share in enumerate(value)}
    else:  # what is not used is ignored
        shares = {f"IPU{index}": value for index in range(ipus or MOST_IPUS)}
    for key, share in shares.items():
        number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not key.removeprefix("IPU").isdigit():
            raise refused(
                "availableMemoryProportion",
                f"has the keys IPU0, IPU1, ...; got {key.removeprefix('IPU')!r}",
            )
        if ipus is not None and int(key.removeprefix("IPU")) >= ipus:
            raise refused(
                "availableMemoryProportion",
                f"names {key}, but the model is on {ipus} IPU(s), counted from IPU0: "
                "give one value for each, or a single number",
            )
        if not number or not 0 < share <= 1:
            raise refused(
                "availableMemoryProportion",
                f"must be above 0 and at most 1 for each IPU, got {share!r} for {key}",
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
                reason = joined(error)
                raise refused(
                    "executionStrategy", f"is not possible: {reason}"
                ) from error
    elif value in sdk.AutoStage.__members__:
        return sdk.PipelinedExecution(sdk.AutoStage[value])
    elif value in kinds:
        return kinds[value]()
    accepted = [*sdk.AutoStage.__members__, *kinds]
    raise refused(
        "executionStrategy",
        f"{value!r}; {nearest(str(value), accepted)} "
        "(or {type, stages: [[block ids], ...]})",
        UnsupportedFeatureError,
    )


def _stage(sdk: Any, stage: Any) -> Any:
    blocks: Sequence[Any] = stage if isinstance(stage, (list, tuple)) else [stage]
    return sdk.Stage(*(str(block) for block in blocks))


def _dtype(name: str, value: Any) -> torch.dtype:
    found = _DTYPES.get(str(value).removeprefix("torch."))
    if found is None:
        raise refused(name, f"must be half or float, got {value!r}")
    return found


def dtype_of(name: str, value: Any) -> torch.dtype | None:
    """A type named in `fp16`, such as `accum_type`; None stays None.

    Raises:
        ConfigError: neither half nor float.
    """
    return None if value is None else _dtype(name, value)
