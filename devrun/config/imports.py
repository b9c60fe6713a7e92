"""`custom_imports`: modules that register what the configuration names."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from devrun.blame import cause_of
from devrun.config.origin import config_error
from devrun.config.schema import KEYS, check_value
from devrun.config.tree import ConfigDict, origin_of
from devrun.errors import ConfigError, ConfigTypeError
from devrun.files import user_path
from devrun.trust import import_for_config, import_for_user

_KEY = "custom_imports"


def import_custom(
    cfg: ConfigDict, folders: Sequence[str | Path] = ()
) -> list[ModuleType]:
    """Import what `cfg["custom_imports"]` lists; the modules, in order.

    `folders` are looked through first; they are given for a config that is trusted,
    as the current folder and the config's own. Without them only what is installed,
    or on the path by the user's will, is imported.

    Raises:
        ConfigError: a wrong form, or a module that cannot be imported (and
            `allow_failed_imports` is not set).
    """
    wish = cfg.get(_KEY)
    if wish is None:
        return []
    check_value(cfg, _KEY, wish, KEYS[_KEY], (_KEY,))
    place, path = origin_of(wish, "imports"), [_KEY, "imports"]
    names = wish.get("imports") or []
    names = [names] if isinstance(names, str) else names
    if not all(map(_is_module, names)):
        reason = "takes module names such as mypackage.models"
        raise config_error(reason, place, path, ConfigTypeError)
    modules = []
    for name in names:
        try:
            found = (
                import_for_user(name, folders) if folders else import_for_config(name)
            )
            modules.append(found)
        except Exception as error:
            reason = (
                f"importing {name!r} failed: {cause_of(error)}; install it, or put "
                "its directory on PYTHONPATH"
            )
            reason = str(error) if isinstance(error, ConfigError) else reason
            problem = config_error(reason, place, path)
            if not wish.get("allow_failed_imports"):
                raise problem from error
            logging.getLogger("devrun").warning("%s", problem)
    return modules


def import_named(names: Iterable[str], file: str | Path) -> None:
    """Import the modules that the user named (`--import`), beside the config too.

    `models/mine.py` is the module `mine` in the folder `models`.

    Raises:
        ConfigError: no module name, or one that cannot be imported.
    """
    for given in names:
        name, folders = given, search_folders(file)
        if given.endswith(".py"):
            path = user_path(given)
            name, folders = path.stem, (str(path.parent),)
        if not _is_module(name):
            raise ConfigError(
                "--import takes a module such as mypackage.models, or a file such as "
                f"models.py, not {given!r}"
            )
        try:
            import_for_user(name, folders)
        except Exception as error:
            raise ConfigError(
                f"--import {given} failed: {cause_of(error)}"
                f"{_advice(error, name, folders)}"
            ) from error


def _advice(error: Exception, name: str, folders: Iterable[str]) -> str:
    """What may help against an `error` while the module `name` was imported."""
    if not isinstance(error, ImportError):
        return ""
    missing = error.name or name
    if missing.split(".")[0] == "mmcv":
        return "; --mmcv gives devrun's names for mmcv's"
    if missing.split(".")[0] != name.split(".")[0]:  # the module itself was found
        return f"; is {missing} installed?"
    places = " and ".join(dict.fromkeys(folders))
    return f"; it is looked up in {places}, and on PYTHONPATH"


def search_folders(file: str | Path) -> tuple[str, ...]:
    """Where modules of the user are looked up: here, and beside the config `file`."""
    return os.getcwd(), os.path.dirname(os.path.abspath(file))


def _is_module(name: Any) -> bool:
    return isinstance(name, str) and all(p.isidentifier() for p in name.split("."))
