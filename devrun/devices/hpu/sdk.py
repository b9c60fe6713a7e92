"""The one importer of `habana_frameworks`, Intel's or the emulator's."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

import torch

from devrun.devices.emulation import (
    is_emulated,
    is_vendor_installed,
    use_emulators,
)
from devrun.devices.versions import fitting, misfit, release_of
from devrun.errors import OUT_OF_MEMORY, DeviceUnavailableError
from devrun.text import joined
from devrun.torch_features import needs

PACKAGE = "habana_frameworks"
GET_IT = (
    "install Intel Gaudi software, whose installer brings habana_frameworks and its "
    "torch (docs.habana.ai), or rehearse with --emulate"
)
_TORCH = {
    "1.13": "2.1",
    "1.14": "2.1",
    "1.15": "2.2",
    "1.16": "2.2",
    "1.17": "2.3",
    "1.18": "2.4",
    "1.19": "2.5",
    "1.20": "2.6",
    "1.21": "2.6",
    "1.22": "2.7",
    "1.23": "2.9",
    "1.24": "2.11",
}
"""The torch that each release of the SDK is built for, the newest last."""


def emulator() -> Any | None:
    """The emulator's control module in a process that loaded it; else None."""
    if not is_emulated(PACKAGE) or f"{PACKAGE}.torch" not in sys.modules:
        return None
    return importlib.import_module(f"{PACKAGE}.emulator")


@dataclass(frozen=True)
class SDK:
    """The loaded SDK; what is used of it is reached through here."""

    hpu: Any
    """`torch.hpu`: device, memory, random stream, graphs, metrics."""
    core: Any
    optimizers: Any
    normalization: Any
    emulator: Any = None
    """The emulator's control module; None on a real SDK."""
    version: str = "of an unknown release"

    @property
    def emulated(self) -> bool:
        return self.emulator is not None


def is_loaded() -> bool:
    """Whether the SDK has read its environment already."""
    return f"{PACKAGE}.torch" in sys.modules


def missing() -> str | None:
    """Why no Gaudi can be used here, as far as it shows without loading the SDK."""
    if not is_vendor_installed(PACKAGE):
        return f"{PACKAGE} is not installed; {GET_IT}; {fitting(PACKAGE, _TORCH)}"
    return misfit(PACKAGE, _release(), _TORCH)


def load(emulate: bool) -> SDK:
    """Import the SDK, or its emulator where that was asked for.

    The environment must be set before.

    Raises:
        DeviceUnavailableError: it is not here, or does not fit this torch.
        UnsupportedFeatureError: this torch is older than those of the SDKs.
    """
    if emulate:
        needs("2.5", "the emulated Gaudi", "device")
        use_emulators()
    elif is_emulated(PACKAGE):
        raise DeviceUnavailableError(
            "device 'hpu' is not here: this process has loaded the emulator of "
            "habana_frameworks; start a new process for the real one"
        )
    OUT_OF_MEMORY.add("PT_DEVMEM Allocation failed")
    try:
        return _import()
    except ImportError as error:
        raise DeviceUnavailableError(
            f"device 'hpu' is not here: habana_frameworks cannot be imported "
            f"({error}); {GET_IT}"
        ) from error
    except (AssertionError, OSError) as error:
        raise DeviceUnavailableError(
            f"device 'hpu' is not here: habana_frameworks {_release()} refuses torch "
            f"{torch.__version__}: {_one_line(error)}; install the torch it was built "
            "for"
        ) from error
    except RuntimeError as error:
        raise DeviceUnavailableError(
            f"device 'hpu' is not here: habana_frameworks {_release()} does not start: "
            f"{_one_line(error)}; check the variables that it reads (option env)"
        ) from error


def _one_line(error: Exception) -> str:
    """The error's text on one line, or its class name if it has no text."""
    return joined(error).rstrip(".") or type(error).__name__


def _import() -> SDK:
    import habana_frameworks.torch as ht  # type: ignore[import-not-found]
    import habana_frameworks.torch.core as core  # type: ignore[import-not-found]
    from habana_frameworks.torch.hpex import (  # type: ignore[import-not-found]
        normalization,
        optimizers,
    )

    emulator = None
    if is_emulated(PACKAGE):
        from habana_frameworks import emulator  # type: ignore[no-redef]
    return SDK(
        hpu=ht.hpu,
        core=core,
        optimizers=optimizers,
        normalization=normalization,
        emulator=emulator,
        version=_release(),
    )


def _release() -> str:
    loaded = getattr(sys.modules.get(PACKAGE), "__version__", None)
    return str(loaded or release_of("habana-torch-plugin", "habana_torch_plugin"))
