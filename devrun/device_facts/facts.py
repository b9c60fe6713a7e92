"""`DeviceFacts`: what a device adds to configs, to resumes and to `auto`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DeviceFacts:
    """Plain data; kinds of keys are the words of `devrun.config.schema`."""

    auto: int | None = None
    """Its place in the order in which `auto` looks for a device; None: it is only taken
    by name."""
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
    runner_options: Mapping[str, str] = field(default_factory=dict)
    """Its options that MMCV keeps in the `runner` section -> their kinds."""
    top_level_options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Top-level key of a config -> the option it sets, and its kind; the key also
    selects the device."""
    recomputes_by: str = ""
    """What it has in place of `gradient_checkpointing`, where it has none."""
