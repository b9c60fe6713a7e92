"""What is known of each device before its adapter is imported.

A module a device, found through a table; packages with devices of their own offer
theirs as entry points, `mydev = "mypackage.facts:FACTS"` in `devrun.device_facts`.
Configs, resumes and `auto` ask here, and know no device by name.
"""

from devrun.device_facts.facts import DeviceFacts
from devrun.device_facts.table import ADAPTERS, FACTS

__all__ = ["ADAPTERS", "FACTS", "DeviceFacts"]
