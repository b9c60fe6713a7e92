"""The energy that a training took, by the counters of the processors and the device.

Linux shows those of RAPL (Intel and AMD) below `/sys/class/powercap`, mostly to root
only: `energy_uj` counts microjoules and begins anew at `max_energy_range_uj`
(Documentation/power/powercap/powercap.rst of the kernel), so it is read now and then.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

POWERCAP = "DEVRUN_POWERCAP"
"""Variable that names another folder than `/sys/class/powercap`."""
EVERY = 30.0
"""Seconds between two looks: at 500 W the smallest usual range lasts for minutes."""
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")
_COUNTED = re.compile(r"package-\d+|dram")
"""Others (core, uncore, psys) are parts of a package, or have it as a part."""

Counter = tuple[str, Callable[[], float]]
"""What it counts, and its joules since any time."""


class EnergyMeter:
    """Measures from its making until `stop`.

    Args:
        device: the counter of the device, if it has one.
        powercap: where the kernel shows RAPL.
    """

    def __init__(
        self, device: Counter | None = None, powercap: str | Path | None = None
    ) -> None:
        root = Path(powercap or os.environ.get(POWERCAP) or "/sys/class/powercap")
        self._why = f"no counter can be read below {root}, and the device has none"
        self._zones = list(_zones(root))
        self._device = device
        self._begun = self._read_device()
        self._ended = threading.Event()
        if self._zones:
            threading.Thread(target=self._look, daemon=True, name="energy").start()

    def stop(self) -> dict[str, Any]:
        """`joules` since the beginning, their `source` and the `counters`."""
        self._ended.set()
        found = {zone.name: zone.look() for zone in self._zones}
        now = self._read_device()
        if self._device is not None and None not in (now, self._begun):
            found[self._device[0]] = float(now or 0.0) - float(self._begun or 0.0)
        if not found:
            return {"joules": None, "source": "none", "why": self._why}
        joules = round(sum(found.values()), 3)
        return {"joules": joules, "source": "measured", "counters": sorted(found)}

    def _read_device(self) -> float | None:
        try:
            return None if self._device is None else self._device[1]()
        except (RuntimeError, OSError, ValueError):  # it has gone, or tells no more
            return None

    def _look(self) -> None:
        while not self._ended.wait(EVERY):
            for zone in self._zones:
                zone.look()


class _Zone:
    """One counter of RAPL."""

    def __init__(self, folder: Path) -> None:
        self.name = f"RAPL {(folder / 'name').read_text().strip()} ({folder.name})"
        self._file = folder / "energy_uj"
        self._range = int((folder / "max_energy_range_uj").read_text())
        self._last = int(self._file.read_text())
        self._sum = 0
        self._lock = threading.Lock()

    def look(self) -> float:
        """Joules so far."""
        with self._lock:
            try:
                now = int(self._file.read_text())
            except (OSError, ValueError):
                return self._sum / 1e6
            step = now - self._last
            self._sum += step if step >= 0 else step + self._range
            self._last = now
            return self._sum / 1e6


def _zones(root: Path) -> Iterator[_Zone]:
    try:
        folders = sorted(f for f in root.iterdir() if _ZONE.fullmatch(f.name))
    except OSError:
        return
    for folder in folders:
        try:
            if _COUNTED.fullmatch((folder / "name").read_text().strip()):
                yield _Zone(folder)
        except (OSError, ValueError):  # most often it is for root only
            continue
