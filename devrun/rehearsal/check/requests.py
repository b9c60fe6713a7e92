"""What the child processes are asked to rehearse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from devrun.config.imports import import_named
from devrun.config.loader import DELETE
from devrun.device_facts import FACTS
from devrun.devices.resolve import adapter_class, device_names
from devrun.errors import DeviceUnavailableError, DevrunError
from devrun.probes.probe import Probes
from devrun.probes.request import Grants, Request
from devrun.step import Capability


def requests(
    cfg: Any, grants: Grants, devices: Sequence[str], **sizes: Any
) -> list[Request]:
    """A request for each mode of each device; the first that can looks at the rest too.

    Args:
        devices: names; those of `usual` by default.

    Raises:
        UnknownNameError: no such device.
        DeviceUnavailableError: it is not here, has no emulator, and no CPU shows it.
    """
    bring(devices, grants)
    found: list[Request] = []
    for device in devices or usual():
        probes, emulated = probes_of(device), _has_emulator(device)
        on = "cpu" if probes.seen_from_cpu else device
        reason = adapter_class(on).unavailable_reason()
        if reason and not emulated:
            raise DeviceUnavailableError(
                f"device {device!r} is neither here nor emulated: {reason}; those that "
                f"can be checked: {', '.join(usual())}"
            )
        modes, where = probes.modes or ("",), probes.torch_device
        for mode in modes:
            section = _section(cfg, on, emulated, mode)
            one = Request(cfg, grants, device, section, emulated, mode, **sizes)
            resumes = mode == modes[0]
            found.append(replace(one, torch_device=where, resumes=resumes))
    eager = (n for n, one in enumerate(found) if _has_gradients(one.section))
    first = next(eager, 0)
    found[first] = replace(found[first], first=True)
    return found


def _has_gradients(section: Any) -> bool:
    """Whether the model's own code and gradients can be looked at on that device."""
    device = section["type"] if isinstance(section, Mapping) else section
    return Capability.GRAD_ACCESS in adapter_class(device).capabilities


def bring(devices: Sequence[str], grants: Grants) -> None:
    """Import the user's modules now, where one must bring a device of `devices`."""
    if set(devices) - set(device_names()):
        import_named(grants.imports, grants.file)


def usual() -> list[str]:
    """Those that a check without `--device` is about: they need not be here."""
    names = [name for name in device_names() if not _broken(name)]
    return [n for n in names if _has_emulator(n) or probes_of(n).seen_from_cpu]


def probes_of(device: str) -> Probes:
    """What the adapter of `device` brings."""
    return adapter_class(device).probes()


def _broken(device: str) -> bool:
    """Whether it is a plug-in's whose module cannot be imported."""
    try:
        adapter_class(device)
    except DevrunError:
        return True
    return False


def _has_emulator(device: str) -> bool:
    return device in FACTS and FACTS[device].has_emulator


def _section(cfg: Any, device: str, emulated: bool, mode: str) -> Any:
    """`device` of the config, with the options that it has for this device."""
    given = cfg.get("device")
    mine = isinstance(given, Mapping) and given.get("type", device) == device
    section = {**(given if mine else {}), "type": device, DELETE: True}
    if emulated:
        section["emulate"] = True
    if mode:
        section["mode"] = mode
    return device if section.keys() == {"type", DELETE} else section
