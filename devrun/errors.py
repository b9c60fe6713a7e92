"""Every error devrun raises on purpose.

    DevrunError                     exit status 1
      ConfigError(ValueError)                   2   a value the user typed or wrote
        UnknownNameError(KeyError)              2   no such key or registered name
        ConfigTypeError(TypeError)              2   right key, wrong kind of value
      UnsupportedFeatureError(NotImplementedError)  2   this device cannot do that
      CheckpointError(RuntimeError)             3
      DataError(RuntimeError)                   4
      DivergedError(ArithmeticError)            5   loss or gradient not finite
        RollbackError                           5   the same, and the run may go back
      DeviceMemoryError(RuntimeError)           6
      HangError(RuntimeError)                   7
      StorageError(OSError)                     8   disk full, not writable
      DeviceUnavailableError(RuntimeError)      9   device or SDK is not here
      RunInterrupted                    75/130/143  a signal ended the run

A message says what was given, what is accepted and what to do, on one line:
the command line prints it as it is. The second base of each class lets code that
expects the built-in exception catch it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from devrun.redact import redact

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ConfigTypeError",
    "DataError",
    "DeviceMemoryError",
    "DeviceUnavailableError",
    "DevrunError",
    "DivergedError",
    "HangError",
    "RollbackError",
    "RunInterrupted",
    "StorageError",
    "UnknownNameError",
    "UnsupportedFeatureError",
    "is_out_of_memory",
    "nearest",
]


class DevrunError(Exception):
    """Base of all; `exit_code` is the process status the command line ends with."""

    exit_code = 1

    def __str__(self) -> str:  # KeyError would show the repr of its argument
        # a traceback leaves the process past every log
        return redact(str(self.args[0])) if self.args else ""


class ConfigError(DevrunError, ValueError):
    exit_code = 2


class UnknownNameError(ConfigError, KeyError):
    pass


class ConfigTypeError(ConfigError, TypeError):
    pass


class UnsupportedFeatureError(DevrunError, NotImplementedError):
    exit_code = 2


class CheckpointError(DevrunError, RuntimeError):
    exit_code = 3


class DataError(DevrunError, RuntimeError):
    exit_code = 4


class DivergedError(DevrunError, ArithmeticError):
    exit_code = 5


class RollbackError(DivergedError):
    pass


class DeviceMemoryError(DevrunError, RuntimeError):
    exit_code = 6


class HangError(DevrunError, RuntimeError):
    exit_code = 7


class StorageError(DevrunError, OSError):
    exit_code = 8


class DeviceUnavailableError(DevrunError, RuntimeError):
    exit_code = 9


class RunInterrupted(DevrunError):
    """A signal ended the run; `exit_code` is 75 (saved), 130 or 143."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error`, Python's or torch's, says that memory did not suffice."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError", "DeviceMemoryError"}:
        return True
    words = ("can't allocate memory", "out of memory", "PT_DEVMEM Allocation failed")
    return isinstance(error, RuntimeError) and any(w in str(error) for w in words)


def nearest(name: str, known: Iterable[str]) -> str:
    """The clause that ends a message about an unknown `name`.

    `"did you mean 'adam'?"` when something in `known` is close, else the known
    names, or an empty string when there are none.
    """
    names = sorted({str(candidate) for candidate in known})
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.6)
    if close:
        return f"did you mean {by_lower[close[0]]!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"known: {shown}"
