"""Memory statistics, from the real sizes of tensors; bytes throughout."""

from __future__ import annotations

from typing import Any

from habana_frameworks._emulation.memory import COUNTERS
from habana_frameworks.torch.hpu._utils import _get_device_index


def _check(device: Any) -> None:
    if _get_device_index(device, optional=True) != 0:
        raise AssertionError("Invalid device id")


def memory_stats(device: Any = None) -> dict[str, int]:
    """All counters, in the SDK's order of keys."""
    _check(device)
    return COUNTERS.stats()


def memory_allocated(device: Any = None) -> int:
    """Bytes in use by tensors."""
    return memory_stats(device)["InUse"]


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes in use since the start or the last reset."""
    return memory_stats(device)["MaxInUse"]


def memory_reserved(device: Any = None) -> int:
    """The whole memory: a process takes all of it."""
    return memory_stats(device)["Limit"]


def max_memory_reserved(device: Any = None) -> int:
    """As `memory_reserved`."""
    return memory_stats(device)["Limit"]


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total)."""
    stats = memory_stats(device)
    return stats["Limit"] - stats["InUse"], stats["Limit"]


def memory_usage(device: Any = None) -> int:
    """Percent of the memory in use."""
    stats = memory_stats(device)
    return 100 * stats["InUse"] // max(1, stats["Limit"])


def memory_summary(device: Any = None) -> str:
    """The counters as a table."""
    rows = (f"{name:<22}{value:>20}" for name, value in memory_stats(device).items())
    return "\n".join(rows)


def reset_peak_memory_stats(device: Any = None) -> None:
    """The peaks start from what is in use now."""
    _check(device)
    COUNTERS.reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """The numbers of allocations and frees start at zero."""
    _check(device)
    COUNTERS.reset_accumulated()
