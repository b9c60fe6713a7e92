"""`DeviceFacts`: what is known of a device before its adapter is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DeviceFacts:
    """Each device with such facts has them in the module `facts` of its folder."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set before torch is imported; what the user has set stays."""
    fast_environment: Mapping[str, str] = field(default_factory=dict)
    """The same, for `performance: fast` only."""
    other_names: tuple[str, ...] = ()
    """Other names that users try; the message suggests the right one."""
    has_emulator: bool = False
    """Whether devrun comes with a look-alike of its SDK, for `emulate`."""
    packages: tuple[str, ...] = ()
    """What a program for it imports; the first is the one to name."""
    resource: str | None = "nvidia.com/gpu"
    """What one of it is called by Kubernetes; None where it is no resource there."""
    runner_options: tuple[str, ...] = ()
    """Its options that MMCV keeps in the `runner` section."""
    top_level_options: Mapping[str, str] = field(default_factory=dict)
    """Top-level key of a config -> the option it sets; it also selects the device."""
