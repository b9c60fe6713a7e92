"""Every error devrun raises on purpose::

    DevrunError                     exit status 1
      ConfigError(ValueError)                   2   a value the user typed or wrote
        UnknownNameError(KeyError)              2   no such key or registered name
        ConfigTypeError(TypeError)              2   right key, wrong kind of value
      UnsupportedFeatureError(NotImplementedError)  2   this device cannot do that
      CheckpointError(RuntimeError)             3
      DataError(RuntimeError)                   4
      DivergedError(ArithmeticError)            5   loss or gradient not finite
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
from typing import Any, TypeVar

from devrun.place import KeyPath, Place
from devrun.python38 import unprefixed
from devrun.redact import redact

OUT_OF_MEMORY = {"can't allocate memory", "out of memory"}
"""Phrases in a RuntimeError of torch; an SDK with a phrase of its own adds it."""
_SHOWN = 20
_LONGEST = 80


E = TypeVar("E", bound="DevrunError")


class DevrunError(Exception):
    """Base of all; `exit_code` is the process status the command line ends with.

    The text is made of the fields, `place: subject: reason (progress)`; what the place
    names is not named again.

    Args:
        reason: what was given, what is accepted and what to do.
        place: where in a config the refused value was written.
        key: the argument or option that is refused; whoever has the section that it was
            given in finds the place by it.
        subject: what the reason is about.
    """

    exit_code = 1
    # defaults for a subclass of a user's that does not call `__init__`
    place: Place | None = None
    key: str | None = None
    subject = ""
    progress = ""
    """How far the run was, such as `epoch 1, iteration 7`."""

    def __init__(
        self,
        *reason: Any,
        place: Place | None = None,
        key: str | None = None,
        subject: str = "",
    ) -> None:
        super().__init__(*reason)
        self.place = place or None
        self.key = key
        self.subject = subject

    @classmethod
    def of(cls: type[E], key: str, clause: str, place: Place | None = None) -> E:
        """The error of an argument: `clause` follows `key` in the message."""
        return cls(f"{key} {clause}", place=place, key=key)

    def locate(self, place: Place, subject: str = "") -> None:
        """Set where the error is from; the first place, which is the nearest, stays."""
        if self.place is None:
            self.place = place or None
            if subject not in self.reason:
                self.subject = self.subject or subject

    @property
    def reason(self) -> str:
        return redact(str(self.args[0])) if self.args else ""

    def __str__(self) -> str:  # KeyError would show the repr of its argument
        subject, place = self.subject, self.place or Place()
        reason = self._said_after(place.path)
        if subject and subject not in place.path:
            reason = f"{subject}: {reason}"
        progress = f" ({self.progress})" if self.progress else ""
        # a traceback leaves the process past every log
        return redact(f"{place}{reason}{progress}")

    def _said_after(self, path: KeyPath) -> str:
        """The reason, less names at its beginning that `path` has."""
        reason = self.reason
        for section in path[:-1]:
            reason = unprefixed(reason, f"{section}: ")
            reason = unprefixed(reason, f"{section}.")
        if path and path[-1] == self.key:
            reason = unprefixed(reason, f"{self.key} ")
        return reason


class ConfigError(DevrunError, ValueError):
    exit_code = 2


class UnknownNameError(ConfigError, KeyError):
    pass


class ConfigTypeError(ConfigError, TypeError):
    pass


class NoGradientError(ConfigError):
    """No weight that is to be trained takes part in a loss."""


class UnsupportedFeatureError(DevrunError, NotImplementedError):
    exit_code = 2


class CheckpointError(DevrunError, RuntimeError):
    exit_code = 3


class DataError(DevrunError, RuntimeError):
    exit_code = 4


class DivergedError(DevrunError, ArithmeticError):
    exit_code = 5


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
    """Whether `error`, Python's or torch's, is about a lack of memory."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError", "DeviceMemoryError"}:
        return True
    text = str(error) if isinstance(error, RuntimeError) else ""
    return any(words in text for words in OUT_OF_MEMORY)


def nearest(name: str, known: Iterable[str]) -> str:
    """The clause that ends a message about an unknown `name`.

    `"did you mean 'adam'?"` when something in `known` is close, or one is a part of the
    other (`Cosin` and `CosineAnnealing`), else the known names, of many the first, or
    an empty string when there are none.
    """
    names = sorted({str(candidate) for candidate in known})
    by_lower = {candidate.lower(): candidate for candidate in names}
    lower = str(name)[:_LONGEST].lower()
    parts = [
        one
        for one in by_lower
        if min(len(one), len(lower)) > 2 and (one in lower or lower in one)
    ]
    close = (
        difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.8)
        or sorted(parts, key=lambda one: abs(len(one) - len(lower)))[:3]
        or difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.6)
    )
    if close:
        *others, last = [repr(by_lower[one]) for one in close]
        return f"did you mean {', '.join(others) + ' or ' * bool(others)}{last}?"
    more = ", ..." if len(names) > _SHOWN else ""
    return f"known: {', '.join(names[:_SHOWN])}{more}" if names else ""
