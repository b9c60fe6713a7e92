"""Of the devices that `torch.accelerator` brings."""

from __future__ import annotations

from devrun.device_facts.facts import DeviceFacts

MPS = DeviceFacts(auto=40)
XPU = DeviceFacts(auto=50)
NPU = DeviceFacts(auto=60)
ACCELERATOR = DeviceFacts(auto=70)
