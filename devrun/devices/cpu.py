"""The CPU: always here, and the measure the other devices are compared with."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from devrun.devices.base import DeviceInfo
from devrun.devices.eager import EagerAdapter
from devrun.devices.fast import has_convolutions
from devrun.step import UpdatePolicy

if TYPE_CHECKING:
    from devrun.probes.probe import Probes

CPUINFO = Path("/proc/cpuinfo")
POWERCAP = Path("/sys/class/powercap")
"""Where Linux shows the energy that processors count (RAPL), often to root alone."""
_INSTRUCTIONS = {
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
"""Flags of x86 and Arm processors, any of which makes a precision a fast one."""

logger = logging.getLogger("devrun")


class CPUAdapter(EagerAdapter):
    """The host's own cores."""

    name = "cpu"
    dist_backend = "gloo"
    host_shared = True

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return None

    @classmethod
    def probes(cls) -> Probes:
        from devrun.probes import compiles, probe

        return probe.Probes((compiles.Compiles,), seen_from_cpu=True)

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        slow = _slow_precisions()
        fast = tuple(name for name in ("fp32", "bf16", "fp16") if name not in slow)
        return (DeviceInfo(_model_name(), _memory_bytes(), fast, slow),)

    def prepare(
        self, model: nn.Module, optimizer: Any, policy: UpdatePolicy
    ) -> tuple[Any, Any]:
        if policy.precision in _slow_precisions():
            logger.warning(
                "precision %r on a CPU without instructions for it (%s): values are "
                "converted one by one, which took 14 to 16 times the processor time of "
                "fp32 where it was measured; use fp32 here",
                policy.precision,
                _model_name(),
            )
        return super().prepare(model, optimizer, policy)

    def switches(self, model: nn.Module, optimizer: Any) -> dict[str, Any]:
        fast = {"avx512_bf16", "amx_bf16"} & _flags() and has_convolutions(model)
        own = {"precision": "bf16", "channels_last": True} if fast else {}
        return {**own, **super().switches(model, optimizer)}

    def stats(self) -> dict[str, float]:
        """Peak resident memory of the whole process."""
        peak = _peak_bytes()
        known = {} if peak is None else {"peak_mib": peak / 2**20}
        return {**super().stats(), **known}

    def transfers(self, move: Callable[[Any], Any]) -> dict[str, Any]:
        # batches are born here: nothing to do unless their layout changes
        idle = move == self.to_device and not self.options.channels_last
        return {} if idle else super().transfers(move)


def energy_counter() -> Callable[[], float] | None:
    """Of all processor packages, shared between the processes of this machine."""
    packages = [p for p in POWERCAP.glob("*-rapl:*") if p.name.count(":") == 1]
    try:
        counters = [_package_counter(package) for package in packages]
    except (OSError, ValueError) as error:
        logger.info("the energy of the processor cannot be read: %s", error)
        return None
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return (lambda: sum(c() for c in counters) / processes) if counters else None


def _package_counter(package: Path) -> Callable[[], float]:
    """Joules since this call; the file counts microjoules and begins again at 0."""
    span = int((package / "max_energy_range_uj").read_text())
    file = package / "energy_uj"
    last, total = int(file.read_text()), 0

    def joules() -> float:
        nonlocal last, total
        now = int(file.read_text())
        total += (now - last) % (span + 1)
        last = now
        return total / 1e6

    return joules


def _model_name() -> str:
    name = _known("model name") or platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def _slow_precisions() -> tuple[str, ...]:
    """Those without instructions of their own; none where that cannot be known."""
    flags = _flags()
    if not flags:
        return ()
    return tuple(name for name, any_of in _INSTRUCTIONS.items() if not flags & any_of)


def _flags() -> set[str]:
    """Instruction sets of the first core; none where they are not known."""
    return set((_known("flags") or _known("Features")).split())


def _known(field: str) -> str:
    """What the kernel says of the first core, or nothing."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return ""
    named = (line.partition(":") for line in lines)
    found = (value for name, _, value in named if name.strip() == field)
    return next(found, "").strip()


def _memory_bytes() -> int | None:
    names = getattr(os, "sysconf_names", {})
    if "SC_PAGE_SIZE" not in names or "SC_PHYS_PAGES" not in names:
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _peak_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
