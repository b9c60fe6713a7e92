"""Older names for questions about the device."""

from __future__ import annotations


def is_habana_available() -> bool:
    """Always True: the device is emulated."""
    return True


def load_habana_module() -> None:
    """Importing was enough."""
