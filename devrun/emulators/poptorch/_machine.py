"""The emulated machine: how many IPUs it has, their memory, and what it has done."""

from __future__ import annotations

import os
from collections import Counter

from poptorch._options_base import check_int

MOST_IPUS = 64
"""As many as one process can have; the default size of the emulated machine."""

counts: Counter[str] = Counter()
"""Compilations, runs and transfers so far: `compile`, `run`, `weights_to_host`,
`weights_to_device`, `optimizer_to_device`, `optimizer_state_to_device`, and of the
executable cache `cache_hit` and `cache_miss`. Clear it with `counts.clear()`."""

_settings: dict[str, int | None] = {"ipus": None, "memory_limit": None}


def ipus() -> int:
    """IPUs of the emulated machine: `set_ipus`, else `POPTORCH_EMULATED_IPUS`, or 64.

    Raises:
        ValueError: The environment variable is no number.
    """
    chosen = _settings["ipus"]
    if chosen is not None:
        return chosen
    return int(os.environ.get("POPTORCH_EMULATED_IPUS", MOST_IPUS))


def is_sized() -> bool:
    """Whether the user chose the number of IPUs."""
    return _settings["ipus"] is not None or "POPTORCH_EMULATED_IPUS" in os.environ


def set_ipus(count: int | None) -> None:
    """Have `count` IPUs from now on, so that "too few" can be rehearsed; None: as at
    the start. With 0, `ipuHardwareIsAvailable()` is False."""
    if count is not None:
        check_int(count, "count", 0)
    _settings["ipus"] = count


def memory_limit() -> int | None:
    """Bytes of one IPU that the estimate is compared with; None: no comparison."""
    return _settings["memory_limit"]


def set_memory_limit(bytes_per_ipu: int | None) -> None:
    """Refuse a model at compilation if its *estimate* on one IPU is above this."""
    if bytes_per_ipu is not None:
        check_int(bytes_per_ipu, "bytes_per_ipu", 1)
    _settings["memory_limit"] = bytes_per_ipu
