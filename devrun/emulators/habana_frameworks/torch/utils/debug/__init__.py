"""What the SDK offers for a look inside."""

from __future__ import annotations

from habana_frameworks._emulation.recorder import RECORDER


def _get_fallback_op_count() -> dict[str, int]:
    """Operator -> how often it ran on the host."""
    return dict(RECORDER.fallbacks)


def _hg_print(*args: object) -> None:
    """Logs graph capture on a Gaudi; silent here."""


def _mem_log(*args: object) -> None:
    """Logs memory on a Gaudi; silent here."""


def _enable_eliminate_common_subexpression(enabled: bool) -> None:
    """A compiler switch; without effect here."""


def _enable_fuse_t_mm_optimization(enabled: bool) -> None:
    """A compiler switch; without effect here."""


def _is_enabled_lazy_collectives() -> bool:
    return False


def _bridge_cleanup() -> None:
    """Gives the bridge's memory back on a Gaudi; nothing to do here."""


def _memstat_livealloc(message: str = "") -> None:
    """Logs live memory on a Gaudi; silent here."""
