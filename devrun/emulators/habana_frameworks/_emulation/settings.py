"""What the environment says, read once at import as the vendor's bridge does."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

GIB = 1 << 30
MEMORY = {"GAUDI": 32 * GIB, "GAUDI2": 96 * GIB, "GAUDI3": 128 * GIB}
"""Device memory by generation, in bytes."""
TRUE = ("1", "true", "yes", "on", "y", "t")


def flag(name: str, default: bool = False) -> bool:
    """The environment variable `name` as a bool."""
    value = os.environ.get(name)
    return default if value is None else value.strip().lower() in TRUE


def _lazy() -> bool:
    value = os.environ.get("PT_HPU_LAZY_MODE", "1")
    if value not in ("0", "1"):
        raise RuntimeError(
            f"PT_HPU_LAZY_MODE={value}: the emulator knows 1 (lazy) and 0 (eager)"
        )
    return value == "1"


def _generation() -> str:
    name = os.environ.get("DEVRUN_HPU_GENERATION", "GAUDI2").upper()
    if name not in MEMORY:
        raise RuntimeError(
            f"DEVRUN_HPU_GENERATION={name}: known are {', '.join(MEMORY)}"
        )
    return name


def _memory(generation: str) -> int:
    text = os.environ.get("DEVRUN_HPU_MEMORY_MB")
    if text is None:
        return MEMORY[generation]
    if not text.isdigit():
        raise RuntimeError(f"DEVRUN_HPU_MEMORY_MB={text}: a whole number is expected")
    return int(text) << 20


def _compound() -> float:
    text = os.environ.get("PT_HPU_MAX_COMPOUND_OP_SIZE")
    if text is None:
        return float("inf")
    if not text.isdigit() or int(text) == 0:
        raise RuntimeError(
            f"PT_HPU_MAX_COMPOUND_OP_SIZE={text}: a number of 1 or more is expected"
        )
    return int(text)


@dataclass
class Settings:
    """The switches of this process.

    `place_on_cpu`: None = any operator may fall back, else the set of those that may.
    `int64_native`: False = int64 is stored as int32, so its range is checked.
    """

    lazy: bool
    generation: str
    memory_limit: int
    max_compound_ops: float
    place_on_cpu: frozenset[str] | None
    int64_native: bool
    check_range: bool
    cache_metrics: bool
    compile_details: bool
    ops_file: str | None


def _place_on_cpu() -> frozenset[str] | None:
    text = os.environ.get("PT_HPU_PLACE_ON_CPU", "").strip()
    if not text:
        return None
    if text.lower() == "none":
        return frozenset()
    return frozenset(name.strip().split("::")[-1] for name in text.split(","))


def read_environment() -> Settings:
    """The settings that the environment asks for; RuntimeError for a bad value."""
    lazy = _lazy()
    generation = _generation()
    return Settings(
        lazy=lazy,
        generation=generation,
        memory_limit=_memory(generation),
        max_compound_ops=_compound(),
        place_on_cpu=_place_on_cpu(),
        int64_native=flag("PT_ENABLE_INT64_SUPPORT", default=not lazy),
        check_range=flag("PT_HPU_ENABLE_VALID_DATA_RANGE_CHECK", default=True),
        cache_metrics=flag("PT_HPU_ENABLE_CACHE_METRICS"),
        compile_details=flag("PT_HPU_METRICS_GC_DETAILS"),
        ops_file=os.environ.get("DEVRUN_HPU_OPS"),
    )


def check_torch() -> None:
    """Refuse this torch as an SDK does that was built for DEVRUN_HPU_TORCH.

    The emulator itself runs on any torch that it can, unless that is rehearsed.
    """
    built_for = os.environ.get("DEVRUN_HPU_TORCH")
    if built_for is None:
        return
    here = torch.__version__
    if here.split(".")[:2] != built_for.split(".")[:2]:
        raise AssertionError(
            f"Error: Compile-time major/minor PyTorch version {built_for} differs from "
            f"run-time {here}."
        )
    if SETTINGS.lazy:
        raise AssertionError(
            f"Stock PyTorch version {here} is not supported in Lazy mode."
        )


SETTINGS = read_environment()
