"""Which mode is on."""

from __future__ import annotations

from habana_frameworks._emulation.settings import SETTINGS


def is_lazy() -> bool:
    """Whether lazy mode is on; read once from PT_HPU_LAZY_MODE."""
    return SETTINGS.lazy


def lazy_only(function: object) -> object:
    """Mark a function as one of lazy mode; returned as it is."""
    return function
