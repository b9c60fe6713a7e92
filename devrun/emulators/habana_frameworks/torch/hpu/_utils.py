"""Device numbers."""

from __future__ import annotations

from typing import Any

import torch


def _get_device_index(
    device: Any, optional: bool = False, allow_cpu: bool = False
) -> int:
    """The number in 'hpu:1', torch.device('hpu', 1) or 1; 0 where none is said."""
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "hpu":
            raise ValueError(f"Expected a hpu device, but got: {device}")
        return 0 if device.index is None else device.index
    if isinstance(device, int):
        return device
    if device is None and optional:
        return 0
    raise ValueError(
        f"Expected a torch.device with a specified index or an integer, but got: "
        f"{device}"
    )
