"""What a check found, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from devrun.probes.finding import MISMATCH, SEVERITIES, Finding

SCHEMA = "devrun.check/1"


@dataclass
class DeviceCheck:
    """One device: what was found there, and what was tried."""

    device: str
    emulated: bool = False
    modes: tuple[str, ...] = ()
    """The device's modes that were tried, where it has several."""
    findings: list[Finding] = field(default_factory=list)
    updates: int = 0
    """Done before the end, at the least; 0 of a program."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What was measured, by name; by mode first where there are several."""
    reduced: list[str] = field(default_factory=list)
    """Sizes that were made smaller, each as a clause."""
    ended: dict[str, str] = field(default_factory=dict)
    """Mode (or an empty name) -> the stage that it did not get past."""

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)


@dataclass
class Check:
    """The result of `check`."""

    config: str
    steps: int
    devices: list[DeviceCheck]
    schema: str = SCHEMA

    def worst(self) -> str | None:
        """The worst severity of all; None where nothing was found."""
        found = {f.severity for device in self.devices for f in device.findings}
        return next((one for one in SEVERITIES if one in found), None)


def merged(
    found: Iterable[tuple[str, Finding]], modes: tuple[str, ...]
) -> list[Finding]:
    """Each finding once, with the modes it was found in; the worst first.

    Args:
        found: mode and finding; the mode is empty where the device has but one.
        modes: those that were tried.
    """
    by_key: dict[Any, tuple[Finding, list[str]]] = {}
    every = list(found)
    known = any(one.kind == MISMATCH for mode, one in every if mode == modes[0])
    for mode, finding in every:
        in_all = known and finding.kind == MISMATCH
        if in_all and mode != modes[0]:  # the first tells where the tensor was made
            continue
        _, seen = by_key.setdefault(finding.key, (finding, []))
        seen += modes if in_all else [mode]
    rows = []
    for finding, seen in by_key.values():
        own = tuple(mode for mode in modes if mode in seen)
        rows.append(replace(finding, modes=() if own == modes else own))
    return sorted(rows, key=lambda row: SEVERITIES.index(row.severity))
