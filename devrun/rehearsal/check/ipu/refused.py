"""Refusals of the emulator's as findings."""

from __future__ import annotations

from typing import Any

from devrun.devices.ipu.remedies import told
from devrun.rehearsal.check.findings import Finding
from devrun.rehearsal.check.keys import pasted
from devrun.rehearsal.check.sites import user_line

KIND = "cannot be compiled"


def finding_of(refusal: Any, *, fix: dict[str, Any] | None = None) -> Finding:
    """A refusal of the emulator's, at the user's own line.

    Args:
        fix: keys of a config with which it need not be compiled.
    """
    said = told(refusal.operation, refusal.message, training=refusal.training)
    return Finding(
        severity="breaks",
        kind=KIND,
        what=said.what,
        why=said.why,
        remedy=f"{said.remedy}; or {pasted(fix)}" if fix else said.remedy,
        site=user_line(refusal.stack),
        fix=fix,
    )
