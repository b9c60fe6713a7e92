"""The CPU: always here, and the measure the other devices are compared with."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devrun.devices.base import DeviceInfo
from devrun.devices.eager import EagerAdapter

__all__ = ["CPUAdapter"]


class CPUAdapter(EagerAdapter):
    """The host's own cores."""

    name = "cpu"
    dist_backend = "gloo"
    host_shared = True

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return None

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        return (DeviceInfo(_model_name(), _memory_bytes(), ("fp32", "bf16", "fp16")),)

    def memory_stats(self) -> Mapping[str, float]:
        """Peak resident memory of the whole process."""
        peak = _peak_bytes()
        return {} if peak is None else {"peak_mib": peak / 2**20}

    def transfers(self) -> dict[str, Any]:
        # batches are born here: nothing to do unless their layout changes
        return super().transfers() if self.options.channels_last else {}


def _model_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.split(":", 1)[1] for line in lines if line.startswith("model name"))
    name = next(named, platform.processor() or platform.machine()).strip()
    return f"{name}, {os.cpu_count()} cores"


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
