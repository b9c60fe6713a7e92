"""The user's code that asked torch for something."""

from __future__ import annotations

import sys
from types import FrameType

from devrun.rehearsal.check import sites
from devrun.rehearsal.check.hpu.watch import calls_model, is_foreign, is_own

_LOOKING_ON = sites.__file__.rpartition("/")[0]
"""The modes that every call goes through."""


def asking() -> FrameType | None:
    """The innermost frame of the user's or of a model's; None where devrun asked."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not (is_foreign(file) or file.startswith(_LOOKING_ON)):
            return None if is_own(file) or calls_model(file) else frame
        frame = frame.f_back
    return None


def line_asking() -> str | None:
    """The user's line that asked; None where devrun asked by itself."""
    return None if asking() is None else sites.here(2)
