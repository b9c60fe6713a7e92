"""Makes the look-alikes of the vendors' SDKs importable, for those who asked for them.

`devrun/emulators/` is an import root: with it on the path, `import poptorch` and
`import habana_frameworks` find the emulators, in child processes too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from devrun.errors import DeviceUnavailableError

EMULATED_PACKAGES = (
    "habana_dataloader",
    "habana_frameworks",
    "popart",
    "popdist",
    "poptorch",
)


def emulators_root() -> Path:
    """The directory that holds the emulated packages."""
    return Path(__file__).resolve().parent.parent / "emulators"


def use_emulators() -> None:
    """Put the emulators before everything else on the import path, once.

    Raises:
        DeviceUnavailableError: a real SDK is imported already; it is not shadowed.
    """
    for name in EMULATED_PACKAGES:
        if name in sys.modules and not is_emulated(name):
            raise DeviceUnavailableError(
                f"emulation was asked for, but the real {name} is imported in this "
                "process already; start a new process for the emulated run"
            )
    root = str(emulators_root())
    if root not in sys.path:
        sys.path.insert(0, root)
    inherited = os.environ.get("PYTHONPATH", "")
    if root not in inherited.split(os.pathsep):  # for data-loader workers and ranks
        paths = [root, inherited] if inherited else [root]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def is_vendor_installed(package: str) -> bool:
    """Whether the vendor's `package` can be found; the emulator's does not count."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if found is None:
        return False
    places = found.submodule_search_locations or [found.origin or ""]
    # with emulation on, child processes have the look-alike on their path
    return any(emulators_root() not in Path(each).resolve().parents for each in places)


def is_emulated(package: str) -> bool:
    """Whether the imported `package` is the emulator's, not the vendor's."""
    module = sys.modules.get(package)
    origin = getattr(module, "__file__", None)
    return origin is not None and emulators_root() in Path(origin).resolve().parents
