"""devrun: an MMCV-style Runner; one device flag picks the adapter for the hardware.

The names below are loaded when they are first used, so that `import devrun` loads
neither torch nor anything of a vendor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the table below, as type checkers and editors read it
    from devrun.checkpoint import load_checkpoint as load_checkpoint
    from devrun.config import Config as Config
    from devrun.config import ConfigDict as ConfigDict
    from devrun.config import DictAction as DictAction
    from devrun.devices.base import DeviceAdapter as DeviceAdapter
    from devrun.devices.base import DeviceInfo as DeviceInfo
    from devrun.devices.resolve import available_devices as available_devices
    from devrun.devices.resolve import register_device as register_device
    from devrun.devices.resolve import resolve_device as resolve_device
    from devrun.errors import CheckpointError as CheckpointError
    from devrun.errors import ConfigError as ConfigError
    from devrun.errors import DataError as DataError
    from devrun.errors import DeviceMemoryError as DeviceMemoryError
    from devrun.errors import DeviceUnavailableError as DeviceUnavailableError
    from devrun.errors import DevrunError as DevrunError
    from devrun.errors import DivergedError as DivergedError
    from devrun.errors import HangError as HangError
    from devrun.errors import StorageError as StorageError
    from devrun.errors import UnsupportedFeatureError as UnsupportedFeatureError
    from devrun.hooks.base import Hook as Hook
    from devrun.hooks.base import Priority as Priority
    from devrun.hooks.base import get_priority as get_priority
    from devrun.optim import build_optimizer as build_optimizer
    from devrun.registry import COLLATE_FUNCTIONS as COLLATE_FUNCTIONS
    from devrun.registry import DATASETS as DATASETS
    from devrun.registry import HOOKS as HOOKS
    from devrun.registry import LOSSES as LOSSES
    from devrun.registry import METRICS as METRICS
    from devrun.registry import MODELS as MODELS
    from devrun.registry import OPTIMIZERS as OPTIMIZERS
    from devrun.registry import RUNNERS as RUNNERS
    from devrun.registry import TRANSFORMS as TRANSFORMS
    from devrun.registry import Registry as Registry
    from devrun.registry import build_from_cfg as build_from_cfg
    from devrun.run import Run as Run
    from devrun.run import RunState as RunState
    from devrun.runners import BaseRunner as BaseRunner
    from devrun.runners import EpochBasedRunner as EpochBasedRunner
    from devrun.runners import IterBasedRunner as IterBasedRunner
    from devrun.runners import build_runner as build_runner
    from devrun.step import Capability as Capability
    from devrun.step import StepOutput as StepOutput
    from devrun.step import UpdatePolicy as UpdatePolicy
    from devrun.trust import allow_factory as allow_factory

__version__ = "0.1.0"

_HOMES = """
    checkpoint: load_checkpoint
    config: Config ConfigDict DictAction
    devices.base: DeviceAdapter DeviceInfo
    devices.resolve: available_devices register_device resolve_device
    errors: CheckpointError ConfigError DataError DeviceMemoryError DevrunError
    errors: DeviceUnavailableError DivergedError HangError StorageError
    errors: UnsupportedFeatureError
    hooks.base: Hook Priority get_priority
    optim: build_optimizer
    registry: COLLATE_FUNCTIONS DATASETS HOOKS LOSSES METRICS MODELS OPTIMIZERS RUNNERS
    registry: TRANSFORMS Registry build_from_cfg
    run: Run RunState
    runners: BaseRunner EpochBasedRunner IterBasedRunner build_runner
    step: Capability StepOutput UpdatePolicy
    trust: allow_factory
"""
"""Module below devrun: the names that it has."""
_MODULE_OF = {
    name: f"devrun.{module}"
    for module, _, names in (row.strip().partition(":") for row in _HOMES.split("\n"))
    for name in names.split()
}

if not TYPE_CHECKING:  # there, a name that is not imported above is an error
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
