"""Whether float8 can be used."""

from __future__ import annotations

__all__ = ["is_fp8_available"]


def is_fp8_available() -> tuple[bool, str]:
    """(False, why)."""
    return False, "the emulator has no float8, for which the CPU's torch lacks kernels"
