"""Device memory, counted from the real sizes of tensors."""

from __future__ import annotations

from habana_frameworks._emulation.settings import SETTINGS

ALIGNMENT = 128
"""Bytes to which the device's allocator rounds."""


class Counters:
    """Bytes and numbers of allocations; `open_graph` is the lazy graph's serial."""

    def __init__(self) -> None:
        self.limit = SETTINGS.memory_limit
        self.in_use = 0
        self.peak = 0
        self.peak_alloc = 0
        self.allocs = 0
        self.frees = 0
        self._allocs_before = 0
        self._frees_before = 0
        self.open_graph = 0
        self.alive_in_graph = 0

    def open(self, graph: int) -> None:
        """A lazy graph of this serial begins; nothing of it is alive yet."""
        self.open_graph = graph
        self.alive_in_graph = 0

    def set_limit(self, nbytes: int) -> None:
        """From now on the device has this much memory."""
        self.limit = nbytes

    def reset_peak(self) -> None:
        """The peaks start from what is in use now."""
        self.peak, self.peak_alloc = self.in_use, 0

    def reset_accumulated(self) -> None:
        """The numbers of allocations and frees start at zero."""
        self._allocs_before, self._frees_before = self.allocs, self.frees

    def stats(self) -> dict[str, int]:
        """The vendor's keys, in the vendor's order."""
        return {
            "Limit": self.limit,
            "InUse": self.in_use,
            "MaxInUse": self.peak,
            "NumAllocs": self.allocs - self._allocs_before,
            "NumFrees": self.frees - self._frees_before,
            "ActiveAllocs": self.allocs - self.frees,
            "MaxAllocSize": self.peak_alloc,
            "TotalSystemAllocs": self.allocs,
            "TotalSystemFrees": self.frees,
            "TotalActiveAllocs": self.allocs - self.frees,
        }


COUNTERS = Counters()


class Allocation:
    """One block of device memory; it is given back when the last tensor on it goes.

    `graph` is the serial of the graph that produced or changed its contents last.
    """

    __slots__ = ("born", "graph", "size")

    def __init__(self, nbytes: int) -> None:
        size = (nbytes + ALIGNMENT - 1) & -ALIGNMENT
        c = COUNTERS
        in_use = c.in_use + size
        if in_use > c.limit:
            self.born = -1
            raise RuntimeError(
                "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::"
                f"{size} ({size / (1 << 20):.2f})MB; {c.in_use} of {c.limit} bytes "
                "of the emulated device are in use"
            )
        self.size = size
        self.graph = 0
        self.born = c.open_graph
        c.alive_in_graph += 1
        c.allocs += 1
        c.in_use = in_use
        if in_use > c.peak:
            c.peak = in_use
        if size > c.peak_alloc:
            c.peak_alloc = size

    def __del__(self) -> None:
        born = self.born
        if born >= 0:
            c = COUNTERS
            c.in_use -= self.size
            c.frees += 1
            if born == c.open_graph:
                c.alive_in_graph -= 1
