"""`workers_per_gpu: auto`: how many worker processes keep a device busy.

The first updates are read in the training process, where reading and computing do not
overlap and each can be timed by itself; then so many workers take over. Which samples
are in which batch never depends on them.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader

from devrun.launched import launcher
from devrun.tensors import tensors_in

WARM_UP, MEASURED = 2, 5
"""Updates that are left out, as caches and kernels are cold, and those timed then."""
_MARGIN = 1.2
_HAND_OVER, _BYTES_PER_SECOND = 3e-4, 2e9
"""What a batch of a worker costs the training process: to be told of it, and to map
and read its memory (0.31 ms, and 4.7 ms for 9.6 MB, of a Zen 3 core)."""

logger = logging.getLogger("devrun")


class WorkerCount:
    """Times the first updates of a loader, and says how many workers it needs.

    Args:
        options: of a DataLoader, once it has workers.
        per_update: batches of an update.
        synchronize: waits until the device has done what was asked of it.
    """

    def __init__(
        self,
        options: dict[str, Any],
        per_update: int = 1,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        self.options = options
        self.known = False
        self._per_update = per_update
        self._synchronize = synchronize
        self._loads: list[float] = []
        self._steps: list[float] = []
        self._since: float | None = None

    def begin(self) -> None:
        """Reading a batch begins: what came since the last one was its step."""
        if self._since is not None:
            if self._synchronize is not None:
                self._synchronize()
            self._steps.append(perf_counter() - self._since)
        self._since = perf_counter()

    def end(self) -> None:
        """The batch is there."""
        now = perf_counter()
        self._loads.append(now - (self._since or now))
        self._since = now

    def rest(self) -> None:
        """The epoch ends: what comes until the next is no step."""
        self._since = None
        whole = len(self._steps) // self._per_update * self._per_update
        del self._loads[whole:], self._steps[whole:]

    def found(self, batch: Any) -> int | None:
        """Workers to take from now on; None where it is not known yet, or was told.

        Args:
            batch: one like all others.
        """
        size = self._per_update
        if self.known or len(self._steps) < (WARM_UP + MEASURED) * size:
            return None
        self.known = True
        load = _per_batch(self._loads, size)
        step = _per_batch(self._steps, size)
        amount = sum(tensor.nbytes for tensor in tensors_in(batch))
        cores = spare_cores()
        count, why = workers_for(load, step, amount, cores)
        logger.info(
            "workers_per_gpu: auto: %d, as a batch takes %.3g ms to read and %.3g ms "
            "to compute%s",
            count,
            load * 1e3,
            step * 1e3,
            why,
        )
        return count

    def loader(self, count: int, generator: Any) -> DataLoader[Any]:
        """One that gives the same batches with so many workers."""
        return DataLoader(**{**self.options, "num_workers": count}, generator=generator)


def workers_for(load: float, step: float, amount: int, cores: int) -> tuple[int, str]:
    """How many workers, and why not another number; "" where nothing stands against it.

    ceil(1.2 load / step): as many as finish a batch while one is computed, with room
    for samples that take longer.

    Args:
        load: seconds of one process to read a batch.
        step: seconds to compute one.
        amount: bytes of a batch.
        cores: that workers may have.
    """
    if load <= _HAND_OVER + amount / _BYTES_PER_SECOND:
        return 0, ": a worker would take longer to hand it over"
    wanted = max(1, math.ceil(_MARGIN * load / step)) if step > 0 else cores
    if wanted <= cores:
        return wanted, ""
    if cores == 0:
        return 0, f": {wanted} would be needed, and this process has no core to spare"
    return cores, (
        f": {wanted} would be needed, and this process has {cores} cores to spare; "
        f"reading bounds the speed at about {cores / load:.3g} batches a second"
    )


def spare_cores() -> int:
    """Cores that this process may use beside the one that it runs on."""
    known = getattr(os, "sched_getaffinity", None)
    cores = len(known(0)) if known is not None else os.cpu_count() or 1
    ours = launcher()
    if ours is None or not ours.cores:  # else bound to a share already
        cores //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(cores - 1, 0)


def _per_batch(seconds: list[float], size: int) -> float:
    """The median of those of whole updates, after the cold ones, divided by `size`."""
    updates = [sum(seconds[at : at + size]) for at in range(0, len(seconds), size)]
    return median(updates[WARM_UP : WARM_UP + MEASURED]) / size
