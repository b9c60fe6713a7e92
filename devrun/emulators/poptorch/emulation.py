"""Controls that only the emulator has: its size, its memory limit, its counts.

`import poptorch.emulation` succeeds on the emulator alone, which is how a program can
tell it from the real package.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from poptorch._options_base import check_int

MOST_IPUS = 64
"""As many as one process can have; the default size of the emulated machine."""

IPU_VERSION = 2

counts: Counter[str] = Counter()
"""Compilations, runs and transfers so far: `compile`, `run`, `weights_to_host`,
`weights_to_device`, `optimizer_to_device`, `optimizer_state_to_device`, and of the
executable cache `cache_hit` and `cache_miss`. Clear it with `counts.clear()`."""

custom_ops: dict[tuple[str, str], Any] = {}
"""What stands in for a custom operation, by name and domain."""

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


def memory_estimate(executor: Any) -> list[dict[str, int]]:
    """Bytes per IPU of a compiled model: weights, optimizer state, activations.

    An estimate from the sizes of tensors (activations: all results of one micro-batch),
    not a model of Poplar's allocator, code or exchange buffers.
    """
    estimate: list[dict[str, int]] = executor._memory_estimate()
    return estimate


def _available(num_ipus: int) -> bool:
    return 0 < num_ipus <= ipus()


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:  # noqa: N802 - PopTorch's name
    """Whether the emulated machine has that many IPUs."""
    return _available(num_ipus)


def ipuHardwareVersion() -> int:  # noqa: N802 - PopTorch's name
    """The generation that is emulated; `AssertionError` if there are no IPUs."""
    if not _available(1):
        raise AssertionError("No IPU hardware is available")
    return IPU_VERSION


def register_custom_op(name: str, domain: str, function: Any) -> None:
    """Have `function(*inputs, **attributes)` stand in for a custom operation.

    It returns a tensor or a list of tensors, by differentiable torch functions.
    """
    custom_ops[name, domain] = function
