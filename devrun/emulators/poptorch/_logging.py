"""The logger `poptorch::python` and its levels."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

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
            logging.Formatter(
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
    name: object = level
    if isinstance(level, int) and 0 <= level < len(_NUMBERED):
        name = _NUMBERED[level]
    if not isinstance(name, str) or name not in _LEVELS:
        raise ValueError(
            f"Invalid log level {level!r}: expected one of {', '.join(_LEVELS)}"
        )
    logger.setLevel(_LEVELS[name])


def setPopartLogLevel(level: str | int) -> None:
    """PopART has no part in an emulated run: the level is checked and forgotten."""
    if isinstance(level, str) and level not in _LEVELS and level != "CRITICAL":
        raise ValueError(f"Invalid log level {level!r}")
