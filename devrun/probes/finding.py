"""What a probe finds, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SEVERITIES = ("breaks", "slow", "differs", "advice")
"""The worst first."""
MISMATCH = "device mismatch"
"""Kind of what an operator is given of the host and of the device together."""


@dataclass(frozen=True)
class Finding:
    """One thing that a user would want to know before the device is there.

    Attributes:
        severity: one of `SEVERITIES`.
        kind: what it is about, in two or three words that stay the same: `on the host`.
        what: the operator, module, key or hook.
        why: one clause: what happens there.
        remedy: what to write instead, one line that can be pasted or followed.
        site: `file:line` of the user's own code or config; None if there is none.
        per_step: times an update; None where it is not counted.
        fix: the remedy as config keys and values (`--cfg-options`), where it is one.
        modes: in which of the device's modes; empty for all of them.
        stack: of a crash, the innermost call first.
    """

    severity: str
    kind: str
    what: str
    why: str
    remedy: str
    site: str | None = None
    per_step: float | None = None
    fix: dict[str, Any] | None = None
    modes: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two findings one, whichever mode they were found in."""
        return self.severity, self.kind, self.what, self.site
