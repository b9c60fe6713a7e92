"""Which modules a word in a config may import, and from which folders.

A config from elsewhere is data: it may name what is installed or what the user put on
the path, and never a file that merely is beside it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from devrun.errors import ConfigError

_FOR_PROGRAMS = "devrun.interop.mmcv"
"""What changes imports: one of these modules does it by being imported itself."""
_opened: set[str] = set()
"""Folders that are on sys.path for the modules that the user named, and no others."""


def import_for_config(name: str) -> ModuleType:
    """The module `name`, which a config names.

    Raises:
        ConfigError: it is of the standard library, a program (`__main__`), or in a
            folder that is on the path by accident: the current one, or that of a
            module which the user named.
        Exception: whatever its own code raises.
    """
    top, *rest = name.split(".")
    if top in sys.stdlib_module_names:
        raise _standard(name)
    if any(part.startswith("__") for part in (top, *rest)):
        raise ConfigError(f"{name!r} is not for a config: a part begins with '__'")
    if name.startswith(_FOR_PROGRAMS):
        raise ConfigError(
            f"{name!r} changes what is imported, which a config cannot ask for: give "
            "the flag --mmcv"
        )
    if name not in sys.modules:
        _check_place(name, top)
    return importlib.import_module(name)


def import_for_user(name: str, folders: Iterable[str | Path]) -> ModuleType:
    """The module `name`, which the user asked for; first looked up in `folders`.

    The folder that has it stays at the head of sys.path, for what the module imports
    later and for worker processes.
    """
    importlib.invalidate_caches()  # the file may be younger than the last look
    for folder in dict.fromkeys(os.path.abspath(folder) for folder in folders):
        if PathFinder.find_spec(name.partition(".")[0], [folder]) is not None:
            if folder not in sys.path:
                sys.path.insert(0, folder)
                _opened.add(folder)
            break
    return importlib.import_module(name)


def is_installed(module: ModuleType) -> bool:
    """Whether the top-level `module` was put where it is by an installer."""
    places = [*getattr(module, "__path__", ())] or [getattr(module, "__file__", None)]
    folders = [Path(place).parent for place in places if place]
    return not folders or any(
        folder.name in ("site-packages", "dist-packages")
        or any(folder.glob("*.dist-info"))
        for folder in folders
    )


def _standard(name: str) -> ConfigError:
    return ConfigError(
        f"{name!r} is in the standard library, which is not for a config"
    )


def _check_place(name: str, top: str) -> None:
    """Refuse a module that would be loaded from where it should not."""
    loaded = sys.modules.get(top)
    if loaded is not None:
        places = [*getattr(loaded, "__path__", ())]
        own = getattr(loaded, "__file__", None)  # where it was loaded from already
        places = [place for place in places if own is None or not _holds(place, own)]
    else:
        spec = importlib.util.find_spec(top)
        if spec is None:
            return  # the import says so
        places = [*(spec.submodule_search_locations or [spec.origin or ""])]
    for folder in map(os.path.dirname, places):
        if folder in _closed():
            raise ConfigError(
                f"{name!r} is in {folder}, from which a config cannot import: name it "
                f"with --import {name}, or put that folder on PYTHONPATH"
            )
        if folder in _STANDARD:
            raise _standard(name)


_STANDARD = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}


def _holds(folder: str, file: str) -> bool:
    return os.path.dirname(os.path.abspath(file)) == os.path.abspath(folder)


def _closed() -> set[str]:
    """Folders on sys.path that were not added for a config."""
    here = os.getcwd()
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    by_accident = "" in given and len(given) > 1  # PYTHONPATH=$UNSET:/somewhere
    named = here in map(os.path.abspath, filter(None, given))
    if named or not (by_accident or ("" in sys.path and here not in sys.path)):
        return _opened
    return {here, *_opened}
