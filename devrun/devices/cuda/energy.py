"""The energy that an NVIDIA GPU counts, by NVML (the package nvidia-ml-py)."""

from __future__ import annotations

from collections.abc import Callable

import torch


def energy_counter() -> Callable[[], float] | None:
    """Joules of this process's GPU since this call; None where nothing counts them."""
    try:
        import pynvml
    except ImportError:
        return None
    uuid = getattr(torch.cuda.get_device_properties("cuda"), "uuid", None)
    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        began = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    except pynvml.NVMLError:  # a GPU that counts none, or another vendor's
        return None
    read = pynvml.nvmlDeviceGetTotalEnergyConsumption
    return lambda: float(read(gpu) - began) / 1000
