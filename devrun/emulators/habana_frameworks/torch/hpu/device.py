"""The device itself: one, always there, of the generation that the settings say."""

from __future__ import annotations

import os
from typing import Any

import torch

from habana_frameworks._emulation.bus import acquire, is_acquired
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks.torch.hpu._utils import _get_device_index


def init() -> None:
    """Acquire the device."""
    acquire()


def is_initialized() -> bool:
    """Whether the device was acquired."""
    return is_acquired()


def is_available() -> bool:
    """Always True: the device is emulated."""
    return True


def device_count() -> int:
    """One device a process."""
    return 1


def current_device() -> int:
    """Index 0, the only one."""
    init()
    return 0


def set_device(device: Any) -> None:
    """Index 0, or one of HABANA_VISIBLE_MODULES; AssertionError for others."""
    index = _get_device_index(device)
    visible = os.environ.get("HABANA_VISIBLE_MODULES")
    allowed = [int(n) for n in visible.split(",")] if visible else [0]
    if index not in allowed:
        raise AssertionError(f"device {index} is not among {allowed}")


class device:  # noqa: N801 - the SDK's name
    """Context manager that changes the device, of which there is one."""

    def __init__(self, device: Any) -> None:
        self.idx = _get_device_index(device, optional=True)

    def __enter__(self) -> None:
        if self.idx > 0:
            set_device(self.idx)

    def __exit__(self, *exc: object) -> None:
        return None


class device_of(device):  # noqa: N801 - the SDK's name
    """As `device`, of a tensor."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(0 if obj.device.type == "hpu" else -1)


def get_device_name(device: Any = None) -> str:
    """GAUDI, GAUDI2 or GAUDI3."""
    return SETTINGS.generation


def get_device_capability(device: Any = None) -> str:
    """The SDK's release."""
    return "1.19.0"


def get_device_properties(device: Any = None) -> str:
    """One line: name and memory."""
    limit = SETTINGS.memory_limit >> 20
    return f"(sramBaseAddress=0, name='{SETTINGS.generation}', dramSizeMB={limit})"


def get_arch_list() -> list[str]:
    """The generations this release knows."""
    return ["gaudi", "gaudi2", "gaudi3"]


def get_gencode_flags() -> str:
    """Empty, as in the SDK."""
    return ""


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """False: there is one device."""
    if not 0 <= _get_device_index(device) < device_count():
        raise AssertionError("Invalid device id")
    if not 0 <= _get_device_index(peer_device) < device_count():
        raise AssertionError("Invalid peer device id")
    return False
