"""What the config says of the IPU, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devrun.config.loader import DELETE
from devrun.config.tree import inside
from devrun.devices.device_section import device_spec
from devrun.devices.ipu.options import IPUSettings, parse_settings
from devrun.errors import ConfigError
from devrun.probes.request import Request

_SECTIONS = ("device", "ipu", "runner.options_cfg", "runner.ipu_model_cfg")


def settings_of(cfg: Any, request: Request) -> IPUSettings | None:
    """What the config says of the device; None where it says it wrong."""
    section = request.section
    if isinstance(section, Mapping):
        section = {k: v for k, v in section.items() if k != DELETE}
    try:
        return parse_settings(device_spec({**cfg, "device": section}))
    except ConfigError:
        return None  # which the build says better


def key_of(cfg: Any, option: str) -> str:
    """`ipu.replicas`, or where else the config gives that option."""
    for section in _SECTIONS:
        if option in (inside(cfg, section) or {}):
            return f"{section}.{option}"
    return f"ipu.{option}"
