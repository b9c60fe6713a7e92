"""The logger `poptorch::python` and its levels."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

import copy
import logging
import os
import sys

TRACE = 5
_LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL + 1,
}
_NUMBERED = ("TRACE", "DEBUG", "INFO", "WARN", "ERR")

logger = logging.getLogger("poptorch::python")


class _Formatter(logging.Formatter):
    """Levels in small letters."""

    def format(self, record: logging.LogRecord) -> str:
        record = copy.copy(record)
        record.levelname = record.levelname.lower()
        return super().format(record)


class _Stderr(logging.StreamHandler):
    """Writes to the `sys.stderr` of the moment, so that captured output is seen."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def install() -> None:
    """One handler, at the level of `POPTORCH_LOG_LEVEL`; a second call adds none."""
    if not logger.handlers:
        handler = _Stderr()
        handler.setFormatter(
            _Formatter(
                "[%(asctime)s.%(msecs)03d] [%(name)s] [%(levelname)s] %(message)s",
                "%H:%M:%S",
            )
        )
        logger.addHandler(handler)
    setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL", "WARN"))


def setLogLevel(level: str | int) -> None:
    """Show messages of `level` and above.

    Raises:
        ValueError: A name other than TRACE, DEBUG, INFO, WARN, ERR, OFF, or a number
            outside 0 (trace) to 4 (error).
    """
    if isinstance(level, int):
        if not 0 <= level < len(_NUMBERED):
            raise ValueError(
                f"Invalid log level integer: {level}. Valid values are 0 (trace) to "
                f"{len(_NUMBERED) - 1} (error)"
            )
        level = _NUMBERED[level]
    if level not in _LEVELS:
        *most, last = sorted(_LEVELS)
        raise ValueError(
            f"Unknown log level: {level}. Valid values are {', '.join(most)} and {last}"
        )
    logger.setLevel(_LEVELS[level])


def setPopartLogLevel(level: str | int) -> None:
    """PopART has no part in an emulated run: the level is checked and forgotten.

    Raises:
        ValueError: Anything but a name that `setLogLevel` takes.
    """
    if level not in _LEVELS:
        raise ValueError(f"Level must be one of {sorted(_LEVELS)}, not {level!r}")
