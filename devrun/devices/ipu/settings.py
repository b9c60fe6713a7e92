"""The `ipu:` section of a config, read into one frozen object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devrun.construct import where
from devrun.devices.options import check_performance
from devrun.errors import ConfigError, ConfigTypeError, DevrunError, nearest

OWN_KEYS = {
    "emulate": "use the emulated PopTorch",
    "replicas": "data-parallel copies in training, as `--ipu-replicas`",
    "evaluate_on": "`device`, or `host` for the CPU",
    "num_ipus": "IPUs of one replica",
    "train_split_edges": "`{layer_to_call, ipu_id, user_id?}` for each block",
    "eval_split_edges": "the same for evaluation; by default that of training",
    "train_ckpt_nodes": "layers whose outputs are kept; the rest is recomputed",
    "modules_to_record": "layers whose outputs are compared with the host's",
    "train_cfg": "options for training only",
    "eval_cfg": "options for evaluation only",
}
"""What devrun reads itself; every other key is an option of PopTorch."""

SECTIONS = (
    "Training",
    "Precision",
    "TensorLocations",
    "Distributed",
    "Jit",
    "_Popart",
)
"""Options that have options of their own."""
_ELSEWHERE = ("cudnn_benchmark", "backend", "timeout")
"""Said to other devices in the same config; there is nothing to set here."""
_MODEL_KEYS = ("train_split_edges", "eval_split_edges", "train_ckpt_nodes")
FAST = (
    "fast changes nothing on an IPU: the update is one compiled graph already, and "
    "half precision, whose loss needs a scale, is yours: fp16: {loss_scale: 128}"
)
"""What `performance` means there."""


@dataclass(frozen=True)
class IPUSettings:
    """One run's choices; `training` and `inference` are PopTorch's options."""

    emulate: bool = False
    replicas: int | None = None
    evaluate_on: str = "device"
    num_ipus: int | None = None
    train_split_edges: Sequence[Mapping[str, Any]] = ()
    eval_split_edges: Sequence[Mapping[str, Any]] = ()
    train_ckpt_nodes: Sequence[str] = ()
    modules_to_record: Sequence[str | int] = ()
    deterministic: bool = False
    performance: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    inference: Mapping[str, Any] = field(default_factory=dict)


def refused(
    option: str, clause: str, kind: type[DevrunError] = ConfigError
) -> DevrunError:
    """The error of an `option` of this device; `clause` follows its name."""
    return kind(f"{option} {clause}", key=option, subject="ipu")


def parse_settings(cfg: Mapping[str, Any]) -> IPUSettings:
    """`cfg`, which is left as it was, with MMCV's `options_cfg` and `ipu_model_cfg`.

    Raises:
        ConfigError: a value out of range, or two that contradict each other.
    """
    values = {k: v for k, v in cfg.items() if k not in ("type", *_ELSEWHERE)}
    values = {k: v for k, v in values.items() if v is not None}  # as if not given
    for name in ("options_cfg", "ipu_model_cfg"):
        given = values.pop(name, None) or {}
        if not isinstance(given, Mapping):
            raise ConfigTypeError.of(name, f"must be a dict, got {given!r}")
        if name == "ipu_model_cfg" and (wrong := set(given) - set(_MODEL_KEYS)):
            key = min(wrong, key=str)
            hint = nearest(str(key), _MODEL_KEYS)
            raise ConfigError(
                f"runner.ipu_model_cfg has no key {key!r}; {hint}",
                place=where(given, key),
            )
        _merge(values, given, f"runner.{name}")
    train, evaluation = (_phase(values.pop(k, None), k) for k in _PHASES)
    values = _renamed(values, "ipu")
    if "index" in values:
        raise ConfigError(
            f"ipu:{values['index']} cannot be chosen: PopTorch takes free IPUs; "
            "the option useIpuId names one",
            key="index",
        )
    if "precision" in values:
        raise ConfigError(
            "ipu has no option 'precision': use the section fp16", key="precision"
        )
    own = {
        k: values.pop(k)
        for k in (*OWN_KEYS, "deterministic", "performance")
        if k in values
    }
    _check(own)
    check_performance(own.get("performance"), "ipu")
    own = {k: v for k, v in own.items() if v is not None}
    for key in _TRAINING_ONLY[:2]:
        if key in evaluation:
            raise refused(
                key,
                "in eval_cfg: evaluation has no gradients, and returns the outputs of "
                "every sample; remove it",
            )
    common = {k: v for k, v in values.items() if k not in _TRAINING_ONLY}
    return IPUSettings(
        **own, training=_over(values, train), inference=_over(common, evaluation)
    )


_PHASES = ("train_cfg", "eval_cfg")
_TRAINING_ONLY = (
    "Training",
    "outputMode",
    "replicationFactor",
    "executionStrategy",
    "inputReplicaGrouping",
)
"""Options that evaluation does not take over from those common to both."""
_MMCV_NAMES = {
    "setAvailableMemoryProportion": "availableMemoryProportion",
    "setExecutionStrategy": "executionStrategy",
    "Precision.setPartialsType": "partialsType",
}


def _merge(values: dict[str, Any], given: Mapping[str, Any], source: str) -> None:
    for key, value in given.items():
        if key in values and values[key] != value:
            raise ConfigError(
                f"{key!r} is {values[key]!r} for the device and {value!r} in {source}: "
                "give it once",
                place=where(given, key),
            )
        values[key] = value


def _phase(options: Any, name: str) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise refused(name, f"must be a dict, got {options!r}", ConfigTypeError)
    own = next((key for key in options if key in OWN_KEYS), None)
    if own is not None:
        raise refused(own, f"is for the whole run: move it out of {name}")
    return _renamed(dict(options), name)


def _over(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one phase: its own before the common ones, in sections too."""
    sections = {
        name: {**common[name], **own[name]}
        for name in SECTIONS
        if all(isinstance(options.get(name), Mapping) for options in (common, own))
    }
    return {**common, **own, **sections}


def _renamed(options: dict[str, Any], section: str) -> dict[str, Any]:
    """PopTorch's setters under MMCV's names for them."""
    precision = options.get("Precision")
    if isinstance(precision, Mapping) and "setPartialsType" in precision:
        rest = dict(precision)
        partials = rest.pop("setPartialsType")
        options = {**options, "Precision": rest, "Precision.setPartialsType": partials}
    for setter, name in _MMCV_NAMES.items():
        if setter in options and name in options:
            raise ConfigError(
                f"{section}: {setter} and {name} are the same: give one", key=setter
            )
    return {_MMCV_NAMES.get(key, key): value for key, value in options.items()}


def _check(own: Mapping[str, Any]) -> None:
    for name in ("emulate", "deterministic"):
        if not isinstance(own.get(name, False), bool):
            raise refused(
                name, f"must be true or false: {own[name]!r}", ConfigTypeError
            )
    for name in ("replicas", "num_ipus"):
        value = own.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise refused(name, f"must be 1 or more, got {value!r}", ConfigTypeError)
    place = own.get("evaluate_on", "device")
    if place not in ("device", "host"):
        raise refused("evaluate_on", f"must be device or host, got {place!r}")
    if own.get("num_ipus", 1) not in (None, 1) and not own.get("train_split_edges"):
        raise refused(
            "num_ipus",
            f"is {own['num_ipus']}, but nothing divides the model: add "
            "train_split_edges; devrun check CONFIG --device ipu says balanced ones",
        )
    for name in (*_MODEL_KEYS, "modules_to_record"):
        value = own.get(name)
        if value is not None and not isinstance(value, (list, tuple)):
            raise refused(name, f"must be a list, got {value!r}", ConfigTypeError)
