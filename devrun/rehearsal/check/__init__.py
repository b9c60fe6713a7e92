"""What would break, be slow or differ on a device, before there is one.

`check` rehearses a config on each device, or on its emulator, in a process of its own
(`parent`, `child`): real updates, an evaluation, a save and a resume (`rehearsal`).
Probes look on and note what they find (`probes`); what breaks is worked around, so that
the rest is still found (`workarounds`).
"""

from devrun.probes.finding import SEVERITIES, Finding
from devrun.rehearsal.check.findings import SCHEMA, Check, DeviceCheck
from devrun.rehearsal.check.parent import check, check_program

__all__ = [
    "SCHEMA",
    "SEVERITIES",
    "Check",
    "DeviceCheck",
    "Finding",
    "check",
    "check_program",
]
