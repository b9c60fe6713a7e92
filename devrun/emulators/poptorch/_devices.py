"""Which executor holds which IPUs of the emulated machine.

A device that is asked for by id is held by one executor at a time. The number of IPUs
is a limit on all executors together only where the user chose it, with
`poptorch.emulation.set_ipus` or `POPTORCH_EMULATED_IPUS`.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

from poptorch import _machine
from poptorch._errors import Error
from poptorch._logging import logger

_held: weakref.WeakKeyDictionary[Any, range] = weakref.WeakKeyDictionary()


def take(executor: Any, count: int, wanted: int | None) -> None:
    """Give `count` IPUs to `executor`, beginning with number `wanted` if there is one.

    Raises:
        Error: Another executor holds them, or too few are left.
    """
    found = _find(count, wanted)
    if found is None:
        gc.collect()  # an executor and its model refer to each other
        found = _find(count, wanted)
    if found is None:
        which = f"device Id {wanted}" if wanted is not None else "a free device"
        raise Error(
            f"Failed to acquire {count} IPU(s): {which} is not available, "
            f"{_in_use()} of {_machine.ipus()} IPUs are in use. Detach or destroy "
            "another model first."
        )
    _held[executor] = found
    logger.debug("Acquired %d IPU(s): running on device Id %d", count, found.start)
    logger.debug("Attached to device %d", found.start)


def target(count: int) -> None:
    """Say what a model is compiled for that takes its device later."""
    logger.debug("Acquired %d IPU(s): running on device Id 0 (the target)", count)


def give_back(executor: Any) -> None:
    """Free what `executor` holds, if anything."""
    _held.pop(executor, None)


def _in_use() -> int:
    return sum(len(ids) for ids in _held.values())


def _find(count: int, wanted: int | None) -> range | None:
    if _machine.is_sized() and _in_use() + count > _machine.ipus():
        return None
    taken = {number for ids in _held.values() for number in ids}
    if wanted is not None:
        return None if wanted in taken else range(wanted, wanted + count)
    first = 0
    while taken.intersection(range(first, first + count)):
        first += 1
    return range(first, first + count)
