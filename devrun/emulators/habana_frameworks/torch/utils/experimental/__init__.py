"""The generation of the device, and detection of recompilations."""

from __future__ import annotations

import enum

from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks.torch.utils.experimental.recompilation import (
    const_shape_dataloader,
    data_dynamicity,
    detect_recompilation_auto_model,
)

__all__ = [
    "const_shape_dataloader",
    "data_dynamicity",
    "detect_recompilation_auto_model",
    "synDeviceType",
]


class synDeviceType(enum.IntEnum):  # noqa: N801 - the SDK's name
    """Generations."""

    synDeviceGaudi = 1  # noqa: N815
    synDeviceGaudi2 = 4  # noqa: N815
    synDeviceGaudi3 = 5  # noqa: N815


def _get_device_type() -> synDeviceType:
    """The generation of this device."""
    return {
        "GAUDI": synDeviceType.synDeviceGaudi,
        "GAUDI2": synDeviceType.synDeviceGaudi2,
        "GAUDI3": synDeviceType.synDeviceGaudi3,
    }[SETTINGS.generation]


def _is_fp16_supported() -> bool:
    """Not on the first generation."""
    return SETTINGS.generation != "GAUDI"
