"""The device that a config asks for, from all the places where MMCV keeps options."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from devrun.config.tree import where
from devrun.device_facts import FACTS
from devrun.devices.base import DeviceAdapter
from devrun.devices.resolve import resolve_device
from devrun.errors import ConfigError, nearest
from devrun.place import Place

_GROUP = ("backend", "timeout")
"""Device options that MMCV keeps in `dist_params`."""


def adapter_of(cfg: Mapping[str, Any]) -> DeviceAdapter:
    """The device's adapter; an error in its options has the place of the option."""
    spec = device_spec(cfg)
    try:
        return resolve_device(spec)
    except ConfigError as error:
        name = str(spec.get("type")).partition(":")[0]
        error.locate(option_place(cfg, name, error.key or ""))
        raise


def option_place(cfg: Mapping[str, Any], device: str, option: str) -> Place:
    """Where an option of `device` was given: by its name, or in a section of it.

    Else the place of the device's own section.
    """
    owners = device_sections(cfg, device)
    owners += [v for each in owners for v in each.values() if isinstance(v, Mapping)]
    for name in (option, option.partition(".")[0]):
        for owner in (*owners, cfg):
            if name in owner:
                return where(owner, name)
    section = next((key for key in (device, "device") if cfg.get(key)), None)
    return Place() if section is None else where(cfg, section)


def parallel_argument(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """`parallel` for a runner, with MMCV's keys for it.

    Nothing where the config does not say it, so that a runner of a user's own need not
    know of it. It keeps the places of its keys.
    """
    section = cfg.get("parallel")
    named = [name for name in ("find_unused_parameters", "sync_bn") if cfg.get(name)]
    if section is None and not named:
        return {}
    made = copy(section) if section is not None else {}
    for name in named:
        made.setdefault(name, True)
    return {"parallel": made}


def device_sections(cfg: Mapping[str, Any], device: str) -> list[Mapping[str, Any]]:
    """The sections in which options of `device` may stand."""
    sections = [cfg.get(key) for key in ("device", device, "runner", "dist_params")]
    return [each for each in sections if isinstance(each, Mapping)]


def device_spec(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The `device` key with the options that MMCV keeps at the top level."""
    device = cfg.get("device") or "auto"
    given = device if isinstance(device, Mapping) else {"type": device}
    spec = {"type": "auto", **given}
    for kind, facts in FACTS.items():
        for key, (option, _) in facts.top_level_options.items():
            if cfg.get(key) and spec.get("type") in ("auto", kind):
                given = {option: cfg[key]}
                spec = {**_agreeing(spec, given, where(cfg, key)), "type": kind}
    name = str(spec.get("type")).split(":")[0]
    own = cfg.get(name)
    if isinstance(own, Mapping):  # the section with the device's name
        spec = _agreeing(spec, own, where(cfg, name))
    runner = cfg.get("runner") or {}
    for key in FACTS[name].runner_options if name in FACTS else ():
        if runner.get(key) is not None:
            spec.setdefault(key, runner[key])
    for name in ("cudnn_benchmark", "deterministic", "performance"):
        if cfg.get(name):
            spec.setdefault(name, cfg[name])
    group = cfg.get("dist_params") or {}
    for key, value in group.items():
        if key not in _GROUP:
            raise ConfigError(
                f"dist_params takes {' and '.join(_GROUP)}; "
                f"{nearest(str(key), _GROUP)}",
                place=where(group, key),
            )
        # MMCV's configs all say nccl: what CUDA takes anyway, and no other device can
        if (key, value) != ("backend", "nccl"):
            spec.setdefault(key, value)
    return spec


def _agreeing(
    spec: dict[str, Any], section: Mapping[str, Any], place: Place
) -> dict[str, Any]:
    """Both together, if a flag or `device:` does not contradict the section."""
    for key, value in section.items():
        # a flag asks for emulation whatever the section says
        if key not in ("type", "emulate") and spec.get(key, value) != value:
            raise ConfigError(
                f"{key} is {value!r}, but {spec[key]!r} was given for the "
                "device (device: in the config, or a flag): give one of the two",
                place=place,
            )
    return {**section, **spec}
