"""Controls that only the emulator has: its size, its memory limit, its counts.

`import poptorch.emulation` succeeds on the emulator alone, which is how a program can
tell it from the real package.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from poptorch import _flow_ops, _placement, _refusals
from poptorch._machine import (
    MOST_IPUS,
    counts,
    ipus,
    is_sized,
    memory_limit,
    set_ipus,
    set_memory_limit,
)
from poptorch._refusals import Refusal

__all__ = [
    "IPU_VERSION",
    "MOST_IPUS",
    "Refusal",
    "counts",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "ipus",
    "is_sized",
    "memory_estimate",
    "memory_limit",
    "refusals",
    "register_custom_op",
    "set_ipus",
    "set_memory_limit",
]

IPU_VERSION = 2


def memory_estimate(executor: Any) -> list[dict[str, int]]:
    """Bytes per IPU of a compiled model: weights, optimizer state, activations.

    An estimate from the sizes of tensors (activations: all results of one micro-batch),
    not a model of Poplar's allocator, code or exchange buffers.
    """
    return _placement.memory_estimate(executor)


def refusals(
    around: _refusals.Around = nullcontext,
    before: _refusals.Before | None = None,
) -> AbstractContextManager[list[Refusal]]:
    """Within, a compilation goes on where it would refuse, and the list says where.

    A refused operation is carried out as CPU torch does it; a value that is asked for
    is that of the first micro-batch, and a result whose size depends on values keeps
    the size that it has there. What such a graph computes is worth nothing.

    Args:
        around: gives what is entered around each capture of the model.
        before: is called before each run, with the user's model and something that
            each graph of it has of its own.
    """
    return _refusals.collected(around, before)


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
    """Have `function(*inputs, **attributes)` stand in for a custom operation."""
    _flow_ops.register_custom_op(name, domain, function)
