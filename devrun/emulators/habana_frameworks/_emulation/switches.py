"""Switches that the SDK keeps and that change nothing but themselves here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from habana_frameworks._emulation.settings import flag


class Switch:
    """A bool that can be set for a while."""

    def __init__(self, on: bool = False) -> None:
        self.on = on

    def set(self, on: bool) -> None:
        """From now on."""
        self.on = on

    @contextmanager
    def as_(self, on: bool) -> Iterator[None]:
        """`on` inside, as before outside."""
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before


DYNAMIC_SHAPE = Switch(flag("PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES"))
RECOMPUTE_SDP = Switch()
SYNC_DEBUG = Switch()
