"""PopTorch's error types and the few constants of its native module."""

from __future__ import annotations

import enum
from typing import Any

from poptorch import _capture
from poptorch._errors import Error, RecoverableError, UnrecoverableError


class TestErrorType(enum.IntEnum):
    """Errors that tests of error handling can ask for."""

    __test__ = False  # the name is PopTorch's; it is no test class
    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


_TEST_ERRORS: dict[TestErrorType, tuple[type[Error], str]] = {
    TestErrorType.Poptorch: (Error, "poptorch_cpp_error"),
    TestErrorType.Popart: (Error, "popart_exception"),
    TestErrorType.PopartInternal: (Error, "popart_internal_exception"),
    TestErrorType.Poplibs: (Error, "poplibs_exception"),
    TestErrorType.PoplarUnrecoverable: (
        UnrecoverableError,
        "poplar_unrecoverable_runtime_error",
    ),
    TestErrorType.PoplarUnknown: (Error, "poplar_unknown_runtime_error"),
    TestErrorType.PoplarRecoverableFullReset: (
        RecoverableError,
        "poplar_recoverable_runtime_error",
    ),
    TestErrorType.PoplarLinkError: (Error, "poplar_link_error"),
}


def _throwTestError(kind: TestErrorType) -> None:  # noqa: N802 - PopTorch's name
    """Raise an error of `kind`, so that its handling can be rehearsed."""
    error, name = _TEST_ERRORS[TestErrorType(kind)]
    message = "a rehearsed error"
    if kind is TestErrorType.PoplarLinkError:
        message += ": -lfoo not found"
    where = "[0] throwTestError::bottomLevel [1] throwTestError::topLevel"
    raise error(message, type=name, location=where)


_SESSION_KINDS = (bool, int, float, str, list, tuple, set, dict)


def _validateOptions(options: dict[str, Any]) -> None:  # noqa: N802 - PopTorch's name
    """Refuse PopART settings of a type that no session option has, or unknown ones."""
    for key, value in options.items():
        if not key.startswith("patterns") and not isinstance(value, _SESSION_KINDS):
            if value is not None and key in options.get("_popart_keys", ()):
                raise Error(
                    f"Unknown value type {type(value).__name__} for option {key}"
                )
    for key in options.get("_popart_keys", ()):
        if not _is_session_option(key):
            raise Error(f"Unknown PopART option {key}")


def _is_session_option(key: str) -> bool:
    """Whether `key` looks like a name of PopART's session options.

    The emulator keeps no list of the hundreds of names: what is spelt in camel case,
    possibly dotted, is accepted.
    """
    return any(c.isupper() for c in key) or key in ("patterns", "engineOptions")


def isCompilingWithDispatcher() -> bool:  # noqa: N802 - PopTorch's name
    """Whether a forward is being captured right now."""
    return _capture.current() is not None
