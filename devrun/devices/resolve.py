"""From a device's name to its adapter; nothing is imported before it is asked for.

Names come from three places: `devrun.device_facts`, `register_device`, and the
entry points `devrun.devices` of packages (`mydev = "mypackage.mod:MyAdapter"`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from devrun.device_facts import ADAPTERS, FACTS
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    DeviceUnavailableError,
    UnknownNameError,
    nearest,
)
from devrun.python38 import entry_points
from devrun.text import joined

if TYPE_CHECKING:
    from devrun.devices.base import DeviceAdapter, DeviceInfo

ENTRY_POINT_GROUP = "devrun.devices"

_registered: dict[str, Any] = {}
_auto_rule: list[Callable[[Any], Any]] = []
"""What `define_auto` was given."""


@dataclass(frozen=True)
class DeviceRow:
    """One line of `devrun devices`."""

    name: str
    reason: str | None
    """None when the device can be used, else why not and how to get it."""
    devices: tuple[DeviceInfo, ...] = ()

    @property
    def available(self) -> bool:
        return self.reason is None


def register_device(name: str, target: Any, *, force: bool = False) -> None:
    """Make `name` mean an adapter, given as `"module:Class"` or as the class.

    Raises:
        ConfigError: the name is taken and `force` is not set, or it cannot be one.
    """
    if not name.isidentifier() or name == "auto":
        raise ConfigError(f"a device cannot be named {name!r}: use a plain word")
    if isinstance(target, str) and target.count(":") != 1:
        raise ConfigError(f"device {name!r}: expected 'module:Class', got {target!r}")
    if not force and (name in ADAPTERS or name in _registered):
        owner = _registered.get(name, ADAPTERS.get(name))
        raise ConfigError(
            f"device {name!r} is already {owner}; choose another name or force=True"
        )
    _registered[name] = target


def device_names() -> list[str]:
    """Every name that `resolve_device` knows, besides `auto`."""
    return sorted({*ADAPTERS, *_registered, *_entry_points(), *_plugged_names()})


def resolve_device(spec: Any) -> DeviceAdapter:
    """The adapter that `spec` asks for, not set up yet.

    Args:
        spec: a name (`cpu`, `cuda`, `cuda:1`, `auto`, one of a plug-in), a mapping
            with `type` and the adapter's options, a `torch.device`, an adapter, or
            an adapter class.

    Raises:
        UnknownNameError: no such device, with the nearest name.
        DeviceUnavailableError: it is not here, with how to get it. Nothing else is
            taken in its place.
        ConfigError: a wrong option.
    """
    from devrun.devices.base import DeviceAdapter

    if isinstance(spec, DeviceAdapter):
        return spec
    if isinstance(spec, type) and issubclass(spec, DeviceAdapter):
        return spec.from_config({})
    name, options = _read(spec)
    if name == "auto":
        return _best().from_config(options)
    adapter = adapter_class(name)
    # an emulated device is there by being asked for
    reason = None if options.get("emulate") else adapter.unavailable_reason()
    if reason is not None:
        raise DeviceUnavailableError(reason, subject=f"device {name!r} is not here")
    return adapter.from_config(options)


def define_auto(rule: Callable[[Any], Any]) -> None:
    """Let a runner's `auto` mean `rule(model)` in this process, not the best device.

    For programs that put their model somewhere themselves, or never name a device.
    """
    _auto_rule[:] = [rule]


def device_for(model: Any, spec: Any) -> Any:
    """`spec`, or what the rule of `define_auto` makes of `auto` for `model`."""
    return _auto_rule[0](model) if _auto_rule and spec == "auto" else spec


def set_environment(*, fast: bool = False) -> None:
    """Set the variables that devices need before torch is imported; keep the user's."""
    for facts in FACTS.values():
        wanted = {**facts.environment, **(facts.fast_environment if fast else {})}
        for name, value in wanted.items():
            os.environ.setdefault(name, value)


def available_devices() -> list[DeviceRow]:
    """A row for every known name, the usable ones first."""
    import torch  # noqa: F401 - with its plug-ins, one of which may name a device

    rows = [_row(name) for name in device_names()]
    return sorted(rows, key=lambda row: (not row.available, row.name))


def _row(name: str) -> DeviceRow:
    try:
        adapter = adapter_class(name)
    except (DeviceUnavailableError, ConfigError) as error:
        return DeviceRow(name, error.reason)
    missing = adapter.unavailable_reason()
    found = () if missing is not None else tuple(adapter.list_devices())
    return DeviceRow(name, missing, found)


def _read(spec: Any) -> tuple[str, dict[str, Any]]:
    """Name and options in a spec; the caller's mapping is left as it was."""
    if isinstance(spec, Mapping):
        options = dict(spec)
        spec = options.pop("type", None)
        if not isinstance(spec, str):
            raise ConfigError(
                f"a device mapping needs 'type', a device's name; got {spec!r} "
                f"beside {', '.join(map(str, options)) or 'nothing'}"
            )
    else:
        options = {}
        if type(spec).__name__ == "device":  # a torch.device, without importing torch
            spec = str(spec)
    if not isinstance(spec, str):
        raise ConfigTypeError(
            f"device must be a name, a mapping with 'type', or an adapter, got {spec!r}"
        )
    name, colon, index = spec.partition(":")
    if colon:
        if not index.isdigit():
            raise ConfigError(f"device {spec!r}: expected a number after the colon")
        if "index" in options:
            raise ConfigError(f"device {spec!r} and index {options['index']!r} clash")
        options["index"] = int(index)
    return name.strip().lower(), options


def _best() -> type[DeviceAdapter]:
    """The first in the order of the facts that is really here."""
    order = sorted((f.auto, name) for name, f in FACTS.items() if f.auto is not None)
    for _, name in order:
        try:
            adapter = adapter_class(name)
        except DeviceUnavailableError:
            continue
        if not adapter.emulated and adapter.unavailable_reason() is None:
            return adapter
    raise DeviceUnavailableError("no device is here, not even the CPU")


def adapter_class(name: str) -> type[DeviceAdapter]:
    """The class of the adapter of that name, whether its device is here or not.

    Raises:
        UnknownNameError: no such device, with the nearest name.
        DeviceUnavailableError: its module cannot be imported.
        ConfigError: it is no adapter of this devrun, or two packages offer it.
    """
    if name in _registered:
        return _load(name, _registered[name], "register_device")
    if name in ADAPTERS:
        return _load(name, ADAPTERS[name], "devrun")
    plugins = _entry_points()
    if name in plugins:
        return _load(name, _only(name, plugins[name]), "an installed package")
    if name in _plugged_names():
        from devrun.devices.generic import plugged_in

        return plugged_in(name)
    meant = next((key for key, facts in FACTS.items() if name in facts.other_names), "")
    hint = nearest(name, [*device_names(), "auto"])
    if meant:
        hint = f"did you mean {meant!r}?"
    raise UnknownNameError(f"no device {name!r}; {hint}")


def _plugged_names() -> list[str]:
    """The name that a plug-in of torch has given its device, if one was imported."""
    if "torch" not in sys.modules:
        return []
    from devrun.torch_features import name_of_plug_in

    named = name_of_plug_in()
    return [] if named is None else [named]


def _load(name: str, target: Any, owner: str) -> type[DeviceAdapter]:
    from devrun.devices.base import DeviceAdapter

    if isinstance(target, str):
        module, _, attribute = target.partition(":")
        try:
            target = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # also a vendor's library that does not fit
            raise DeviceUnavailableError(
                f"its adapter {module}:{attribute} ({owner}) cannot be imported: "
                f"{joined(error)}",
                subject=f"device {name!r} is not here",
            ) from error
    if not (isinstance(target, type) and issubclass(target, DeviceAdapter)):
        raise ConfigError(
            f"device {name!r} ({owner}): {target!r} is not a subclass of DeviceAdapter"
        )
    if lacked := sorted(getattr(target, "__abstractmethods__", ())):
        raise ConfigError(
            f"device {name!r} ({owner}): {target.__module__}.{target.__name__} has no "
            f"{', '.join(lacked)}, which this devrun asks of an adapter: "
            "install its release for this devrun"
        )
    return target


def _entry_points() -> dict[str, set[str]]:
    """Name -> targets of what installed packages offer."""
    found: dict[str, set[str]] = {}
    for point in entry_points(ENTRY_POINT_GROUP):
        found.setdefault(point.name, set()).add(point.value.replace(" ", ""))
    return found


def _only(name: str, targets: set[str]) -> str:
    if len(targets) > 1:
        raise ConfigError(
            f"device {name!r} is offered by {' and '.join(sorted(targets))}; uninstall "
            "the package that you do not mean"
        )
    (target,) = targets
    return target
