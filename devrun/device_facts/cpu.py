from __future__ import annotations

from devrun.device_facts.facts import DeviceFacts

FACTS = DeviceFacts(auto=100, resource=None)
