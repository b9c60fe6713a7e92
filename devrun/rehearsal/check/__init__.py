"""What would break, be slow or differ on a device, before there is one.

`check` rehearses a config on each device, or on its emulator, in a process of its own
(`parent`, `child`): real updates, an evaluation, a save and a resume (`rehearsal`).
Probes look on and note what they find (`probes`); what breaks is worked around, so that
the rest is still found (`workarounds`).
"""

from devrun.probes.finding import SEVERITIES as SEVERITIES
from devrun.probes.finding import Finding as Finding
from devrun.rehearsal.check.findings import SCHEMA as SCHEMA
from devrun.rehearsal.check.findings import Check as Check
from devrun.rehearsal.check.findings import DeviceCheck as DeviceCheck
from devrun.rehearsal.check.parent import check as check
from devrun.rehearsal.check.parent import check_program as check_program
