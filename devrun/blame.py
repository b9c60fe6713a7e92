"""Where in the user's own code an error arose: the line that its reader can change."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterator

from devrun.text import joined

_INSTALLED = ("site-packages", "dist-packages")
_OURS = (os.path.dirname(os.path.abspath(__file__)), sysconfig.get_paths()["stdlib"])
_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')
_FROM_WORKER = "Original Traceback (most recent call last)"
"""With this torch hands over an error of a loader's worker, as text."""


def cause_of(error: BaseException) -> str:
    """`FILE:LINE in NAME: KIND: MESSAGE` on one line, as far as there is such a line.

    FILE is the user's: the last one of the traceback that is neither devrun's nor
    Python's nor of an installed package.
    """
    lines = str(error).strip().splitlines()
    told = f"{type(error).__name__}: {joined(error)}" if lines else type(error).__name__
    if _FROM_WORKER in str(error):  # it ends with the kind and the message
        told = joined(lines[-1])
    place = users_line(error)
    return told if place is None else f"{place}: {told}"


def users_line(error: BaseException | None) -> str | None:
    """`FILE:LINE in NAME` of the user's code that `error`, or its cause, came through;
    None where none of it did."""
    while error is not None:
        found = [frame for frame in _frames(error) if is_users(frame[0])]
        if found:
            file, line, name = found[-1]
            return f"{_shown(file)}:{line} in {name}"
        error = error.__cause__
    return None


def users_line_in(trace: str) -> str | None:
    """The same of a stack as text."""
    found = [frame for frame in _FRAME.findall(trace) if is_users(frame[0])]
    if not found:
        return None
    file, line, name = found[-1]
    return f"{_shown(file)}:{line} in {name}"


def is_users(file: str) -> bool:
    """Whether `file` is neither devrun's nor Python's nor of an installed package."""
    parts = os.path.abspath(file).split(os.sep)
    if file.startswith("<") or any(name in parts for name in _INSTALLED):
        return False
    return not any(os.path.abspath(file).startswith(f"{own}{os.sep}") for own in _OURS)


def _shown(file: str) -> str:
    """`file`, from the current folder on where it is in that."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # it is gone
        return file
    return file[len(here) :] if file.startswith(here) else file


def _frames(error: BaseException) -> Iterator[tuple[str, int, str]]:
    if _FROM_WORKER in str(error):
        for file, line, name in _FRAME.findall(str(error)):
            yield file, int(line), name
        return
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.filename, frame.lineno or 0, frame.name
