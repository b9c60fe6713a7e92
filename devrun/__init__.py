"""devrun: an MMCV-style Runner; one device flag picks the adapter for the hardware.

The names below are loaded when they are first used, so that `import devrun` loads
neither torch nor anything of a vendor.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "devrun.config": ("Config", "ConfigDict", "DictAction"),
    "devrun.devices.base": ("DeviceAdapter", "DeviceInfo"),
    "devrun.devices.resolve": (
        "available_devices",
        "register_device",
        "resolve_device",
    ),
    "devrun.errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "DeviceMemoryError",
        "DeviceUnavailableError",
        "DevrunError",
        "DivergedError",
        "HangError",
        "StorageError",
        "UnsupportedFeatureError",
    ),
    "devrun.hooks.base": ("Hook", "Priority", "get_priority"),
    "devrun.checkpoint": ("load_checkpoint",),
    "devrun.optim": ("build_optimizer",),
    "devrun.registry": (
        "COLLATE_FUNCTIONS",
        "DATASETS",
        "HOOKS",
        "LOSSES",
        "METRICS",
        "MODELS",
        "OPTIMIZERS",
        "RUNNERS",
        "Registry",
        "TRANSFORMS",
        "build_from_cfg",
    ),
    "devrun.runners": (
        "BaseRunner",
        "EpochBasedRunner",
        "IterBasedRunner",
        "build_runner",
    ),
    "devrun.trust": ("allow_factory",),
    "devrun.step": ("Capability", "StepOutput", "UpdatePolicy"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    try:
        module = _MODULE_OF[name]
    except KeyError:
        from devrun.errors import nearest

        hint = nearest(name, _MODULE_OF)
        hint = f"; {hint}" if hint.startswith("did you mean") else ""
        raise AttributeError(f"devrun has no {name!r}{hint}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
