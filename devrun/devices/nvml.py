"""NVIDIA's own count of a GPU's energy, by the optional package nvidia-ml-py."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module


def energy_counter(uuid: str) -> tuple[str, Callable[[], float]] | None:
    """(name, joules since the driver was loaded) of the GPU with this UUID.

    None without the package or the driver, and for GPUs that do not count, which are
    those before Volta.
    """
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        name = nvml.nvmlDeviceGetName(handle)
    except (nvml.NVMLError, AttributeError):
        return None

    def joules() -> float:
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
        except nvml.NVMLError as error:
            raise RuntimeError(str(error)) from error

    return f"NVML {name}", joules
