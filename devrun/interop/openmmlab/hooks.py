"""Hooks of packages on MMCV 1.x on devrun's runner."""

from __future__ import annotations

from typing import Any

from devrun.construct import Buildable
from devrun.registry import HOOKS

__all__ = ["find"]

OWN: dict[str, Buildable] = {}
"""What means something else there than devrun's hook of that name."""


def find(name: str, theirs: Any) -> Buildable | None:
    """The hook that `name` means within a config of theirs."""
    return OWN.get(name) or HOOKS.get(name)
