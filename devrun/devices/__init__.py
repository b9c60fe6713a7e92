"""The only rooms that know hardware: one adapter per kind of device.

Names are loaded when used: `devrun --help` must not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from devrun.devices.resolve import (
    DeviceRow,
    available_devices,
    device_names,
    register_device,
    resolve_device,
)

__all__ = [
    "CPUAdapter",
    "CUDAAdapter",
    "DeviceAdapter",
    "DeviceInfo",
    "DeviceRow",
    "EagerAdapter",
    "GenericAdapter",
    "available_devices",
    "device_names",
    "register_device",
    "resolve_device",
]

_LAZY = {
    "CPUAdapter": "devrun.devices.cpu",
    "CUDAAdapter": "devrun.devices.cuda",
    "DeviceAdapter": "devrun.devices.base",
    "DeviceInfo": "devrun.devices.base",
    "EagerAdapter": "devrun.devices.eager",
    "GenericAdapter": "devrun.devices.generic",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
