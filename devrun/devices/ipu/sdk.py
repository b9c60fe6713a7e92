"""Where PopTorch comes from: the vendor's package, or the emulator if asked for."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

from devrun.devices.emulation import (
    is_emulated,
    is_vendor_installed,
    use_emulators,
)
from devrun.devices.versions import fitting, misfit, release_of
from devrun.errors import DeviceUnavailableError
from devrun.python38 import unprefixed
from devrun.text import joined

_TORCH = {
    "2.6": "1.10",
    "3.1": "1.13",
    "3.2": "1.13",
    "3.3": "2.0",
    "3.4": "2.0",
}
"""The torch that each release of PopTorch is pinned to, the newest last."""
_REHEARSE = "or add --emulate to rehearse without IPUs"


def load(emulate: bool) -> Any:
    """The module `poptorch`.

    Raises:
        DeviceUnavailableError: it is not here, or the other one of the two is imported
            in this process.
    """
    if emulate:
        use_emulators()
    elif reason := missing():
        raise DeviceUnavailableError(f"device 'ipu' is not here: {reason}")
    import poptorch  # type: ignore[import-not-found]

    return poptorch


def missing() -> str | None:
    """Why the vendor's PopTorch cannot be used now, and how to get it; None if it can.

    Never raises.
    """
    if is_emulated("poptorch"):
        return (
            "this process has the emulated PopTorch imported; start a new one for the "
            f"real SDK, {_REHEARSE}"
        )
    if not is_vendor_installed("poptorch"):
        return (
            "PopTorch is not installed: get Graphcore's Poplar SDK, `source` its "
            "enable scripts, and pip install the poptorch wheel that comes in it "
            f"({fitting('PopTorch', _pinned())}), {_REHEARSE}"
        )
    # before the import: native code of another torch may end the process
    if wrong := misfit("PopTorch", release_of("poptorch"), _pinned()):
        return f"{wrong}; {unprefixed(_REHEARSE, 'or ')}"
    try:
        import poptorch

        here = poptorch.ipuHardwareIsAvailable()
    # the vendor's package asserts versions and loads libraries when it is imported
    except (ImportError, AssertionError, OSError, RuntimeError) as error:
        cause = joined(error)
        return (
            f"PopTorch is installed but does not start ({cause}): `source` the enable "
            "scripts of the Poplar SDK, with the torch version that its PopTorch is "
            f"made for, {_REHEARSE}"
        )
    if here:
        return None
    return (
        "PopTorch finds no IPU: look with gc-info -l, and set IPUOF_VIPU_API_PARTITION_"
        f"ID on an IPU Pod, {_REHEARSE}"
    )


def _pinned() -> dict[str, str]:
    """`_TORCH`, completed by the release of the installed package."""
    found = re.match(r"(\d+\.\d+)", release_of("poptorch"))
    try:
        wants = metadata.requires("poptorch") or []
    except metadata.PackageNotFoundError:
        wants = []
    for want in wants:
        pin = re.match(r"torch\s*\(?==\s*(\d+\.\d+)", want)
        if pin and found:
            return {**_TORCH, found[1]: pin[1]}
    return _TORCH
