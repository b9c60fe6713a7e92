"""Where in the user's code something happened."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import FrameType

import torch

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_inside: dict[str, bool] = {}
Place = tuple[str, int]


@dataclass(frozen=True)
class Site:
    """A line of the user's code; line 0 where none is on the stack."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


NOWHERE = Site("<autograd>", 0)
"""The backward pass runs in a thread of torch's own, below no user code."""


def _is_inside(filename: str) -> bool:
    found = _inside.get(filename)
    if found is None:
        found = filename.startswith((_OURS, _TORCH, "<"))
        _inside[filename] = found
    return found


def user_place() -> Place | None:
    """File and line that is neither torch's nor the emulator's, the innermost one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_inside(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def user_site() -> Site:
    """The same as a site."""
    place = user_place()
    return NOWHERE if place is None else Site(*place)
