"""PopTorch's error types; `poptorch.poptorch_core` is where programs find them.

The errors derive from `Exception` alone, as the originals do: `except RuntimeError`
around user code does not swallow them.
"""

from __future__ import annotations


class Error(Exception):
    """What PopTorch, PopART or Poplar refuse; `message`, `type` and `location`."""

    __module__ = "poptorch.poptorch_core"

    def __init__(
        self, message: str = "", type: str = "poptorch_cpp_error", location: str = ""
    ) -> None:
        super().__init__(f"{message} ({location})" if location else message)
        self.message = message
        self.type = type
        self.location = location


class RecoverableError(Error):
    """The device can be used again after `recovery_action`."""

    __module__ = "poptorch.poptorch_core"

    def __init__(
        self, message: str = "", recovery_action: str = "FULL_RESET", **details: str
    ) -> None:
        super().__init__(message, **details)
        self.recovery_action = recovery_action


class UnrecoverableError(Error):
    """The device needs service."""

    __module__ = "poptorch.poptorch_core"
