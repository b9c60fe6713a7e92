"""The only package that knows hardware: one adapter per kind of device.

Names are loaded when used: `devrun --help` must not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from devrun.devices.resolve import DeviceRow as DeviceRow
from devrun.devices.resolve import available_devices as available_devices
from devrun.devices.resolve import device_names as device_names
from devrun.devices.resolve import register_device as register_device
from devrun.devices.resolve import resolve_device as resolve_device

if TYPE_CHECKING:  # the table below, as type checkers and editors read it
    from devrun.devices.base import DeviceAdapter as DeviceAdapter
    from devrun.devices.base import DeviceInfo as DeviceInfo
    from devrun.devices.cpu import CPUAdapter as CPUAdapter
    from devrun.devices.cuda.adapter import CUDAAdapter as CUDAAdapter
    from devrun.devices.eager import EagerAdapter as EagerAdapter
    from devrun.devices.generic import GenericAdapter as GenericAdapter


_LAZY = {
    "CPUAdapter": "devrun.devices.cpu",
    "CUDAAdapter": "devrun.devices.cuda.adapter",
    "DeviceAdapter": "devrun.devices.base",
    "DeviceInfo": "devrun.devices.base",
    "EagerAdapter": "devrun.devices.eager",
    "GenericAdapter": "devrun.devices.generic",
}

if not TYPE_CHECKING:  # there, a name that is not imported above is an error

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_LAZY[name]), name)
