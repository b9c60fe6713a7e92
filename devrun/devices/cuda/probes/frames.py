"""The user's code that asked torch for something."""

from __future__ import annotations

import sys
from types import FrameType

from devrun.probes import sites


def asking() -> FrameType | None:
    """The innermost frame of the user's or of a model's; None where devrun asked."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not (sites.is_foreign(file) or sites.looks_on(file)):
            return None if sites.is_own(file) or sites.calls_model(file) else frame
        frame = frame.f_back
    return None


def line_asking() -> str | None:
    """The user's line that asked; None where devrun asked by itself."""
    return None if asking() is None else sites.here(2)
