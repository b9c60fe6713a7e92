"""What one child process is asked to rehearse, and what its probes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from devrun.config.loader import DELETE
from devrun.device_facts import FACTS
from devrun.devices.resolve import available_devices, device_names
from devrun.errors import DeviceUnavailableError, UnknownNameError, nearest

MODES: Mapping[str, tuple[str, ...]] = {"hpu": ("lazy", "eager", "compile")}
"""Device -> its modes, which differ in what breaks and what is slow."""
SEEN_FROM_CPU = ("cuda",)
"""Devices without an emulator that much can be said of from a CPU's run."""
USUAL = ("cpu", "cuda", "hpu", "ipu")
"""The devices that a check without `--device` is about."""


@dataclass(frozen=True)
class Grants:
    """What the user lets the config do, as the command line's flags say it."""

    file: str
    """The config's, beside which modules are looked up."""
    factories: tuple[str, ...] = ()
    everything: bool = False
    imports: tuple[str, ...] = ()
    downloads: bool = False
    mmcv: bool = False


@dataclass(frozen=True)
class Request:
    """One rehearsal: a config on a device, in one of its modes."""

    cfg: Any
    grants: Grants
    device: str
    """The device that the findings are about."""
    section: Any
    """What the config's `device` is to be for it."""
    emulated: bool = False
    seen_from_cpu: bool = False
    """Whether the updates run on the CPU, for a device that is not here."""
    mode: str = ""
    steps: int = 3
    samples: int = 8
    """Samples of a batch at the most."""
    memory: int | None = None
    """Bytes that the device has; None where nobody said it."""
    first: bool = True
    """Whether it also looks at what is the same on every device."""


def requests(
    cfg: Any, grants: Grants, devices: tuple[str, ...], **sizes: Any
) -> list[Request]:
    """A request for each mode of each device; the first looks at the rest too.

    Raises:
        UnknownNameError: no such device.
        DeviceUnavailableError: it is not here, and has no emulator.
    """
    here = {row.name: row for row in available_devices()}
    found: list[Request] = []
    for device in devices:
        if device not in here:
            raise UnknownNameError(
                f"no device {device!r}; {nearest(device, device_names())}"
            )
        facts = FACTS.get(device)
        emulated = not here[device].available and bool(facts and facts.has_emulator)
        absent = not (here[device].available or emulated)
        if absent and device not in SEEN_FROM_CPU:
            raise DeviceUnavailableError(
                f"device {device!r} is neither here nor emulated: "
                f"{here[device].reason}; those that can be checked: {', '.join(USUAL)}"
            )
        for mode in MODES.get(device, ("",)):
            section = "cpu" if absent else _section(cfg, device, emulated, mode)
            one = Request(cfg, grants, device, section, emulated, absent, mode, **sizes)
            found.append(replace(one, first=not found))
    return found


def _section(cfg: Any, device: str, emulated: bool, mode: str) -> Any:
    """`device` of the config, with the options that it has for this device."""
    given = cfg.get("device")
    own = (
        dict(given)
        if isinstance(given, Mapping) and given.get("type", device) == device
        else {}
    )
    section = {**own, "type": device, DELETE: True}
    if emulated:
        section["emulate"] = True
    if mode:
        section["mode"] = mode
    return device if section.keys() == {"type", DELETE} else section
