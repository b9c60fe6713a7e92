"""What a config asks of CUDA, wherever MMCV or devrun keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def asked_of(cfg: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The options that `device` would be given."""
    found: dict[str, Any] = {"deterministic": True} if cfg.get("deterministic") else {}
    for section in (cfg.get(device), cfg.get("device")):
        if isinstance(section, Mapping):
            kind = str(section.get("type", device)).partition(":")[0]
            if kind in (device, "auto"):
                found.update(section)
    return found
