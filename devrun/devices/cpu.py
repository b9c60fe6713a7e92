"""The CPU: always here, and the measure the other devices are compared with."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from devrun.devices.base import DeviceInfo
from devrun.devices.eager import EagerAdapter
from devrun.devices.fast import Switch, has_convolutions
from devrun.step import UpdatePolicy

CPUINFO, MAPS = Path("/proc/cpuinfo"), Path("/proc/self/maps")
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

    def switches(
        self, model: nn.Module, optimizer: Any, policy: UpdatePolicy
    ) -> list[Switch]:
        images = has_convolutions(model)
        bf16 = images and bool(_flags() & {"avx512_bf16", "amx_bf16"})
        if not images:
            why = "there are no convolutions of images"
        elif not bf16:
            why = "neither AVX512-BF16 nor AMX in this processor"
        else:
            why = "convolutions of images, on a processor with instructions for bf16"
        return [
            Switch("precision", "bf16" if bf16 else None, why, "bf16 has 3 digits"),
            Switch("channels_last", bf16 or None, why, "last bits"),
            *super().switches(model, optimizer, policy),
            Switch("compile", None, "was no faster on a CPU, and takes minutes"),
            Switch("omp_num_threads", None, _thread_advice()),
            Switch("LD_PRELOAD", None, _allocator()),
        ]

    def stats(self) -> dict[str, float]:
        """Peak resident memory of the whole process."""
        peak = _peak_bytes()
        known = {} if peak is None else {"peak_mib": peak / 2**20}
        return {**super().stats(), **known}

    def transfers(self, move: Callable[[Any], Any]) -> dict[str, Any]:
        # batches are born here: nothing to do unless their layout changes
        idle = move == self.to_device and not self.options.channels_last
        return {} if idle else super().transfers(move)


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


def _thread_advice() -> str:
    """Whether the threads of this machine's processes have a core each."""
    affinity = getattr(os, "sched_getaffinity", None)
    all_cores = os.cpu_count() or 1
    cores = len(affinity(0)) if affinity else all_cores
    if cores == all_cores:  # else what started this process gave it its own
        cores = max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    threads = torch.get_num_threads()
    said = f"{threads} threads, {cores} cores for this process"
    return said if threads <= cores else f"{said} wait for each other: set {cores}"


def _allocator() -> str:
    """Whose memory allocator this process has, as far as the kernel tells."""
    try:
        loaded = MAPS.read_text(encoding="utf-8")
    except OSError:  # not Linux
        return "which allocator this process has is not known"
    for name in ("tcmalloc", "jemalloc", "mimalloc"):
        if name in loaded:
            return f"{name} is there"
    return "the C library's allocator; tcmalloc may be faster, see docs/speed.md"


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
