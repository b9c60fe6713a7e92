"""Configs whose bases and types are imports (`with read_base():`), under trust."""

from __future__ import annotations

import logging
import re
from importlib import import_module
from typing import Any

from devrun.blame import cause_of
from devrun.config import Config
from devrun.config.engine import is_engine_style
from devrun.config.tree import ConfigDict, rehome
from devrun.errors import ConfigError
from devrun.importing import import_for_config
from devrun.interop.mmengine.scope import attach
from devrun.place import Origin
from devrun.scopes import SCOPES
from devrun.text import escape
from devrun.trust import granted, import_path


def read_lazy(path: str) -> Config:
    """The configuration, by MMEngine's reader, which imports what the file names.

    Classes become names of their scope, or dotted paths where no registry has them.
    The values have the file, and no line: they were made by a program.

    Raises:
        ConfigError: MMEngine is missing, or its reader failed.
    """
    logging.getLogger("devrun").warning(
        "running %s as Python code, because this was asked for", escape(path)
    )
    import_for_config("mmengine")
    reader: Any = import_module("mmengine.config").Config
    try:
        with granted(everything=True):  # this reader is what was asked for
            tree = _plain(reader.fromfile(path, lazy_import=True).to_dict())
    except Exception as error:
        raise ConfigError(
            f"{path}: MMEngine's reader failed: {type(error).__name__}: "
            f"{cause_of(error)}"
        ) from error
    rehome(tree, (), Origin(path))
    config = Config(tree, filename=path)
    if not is_engine_style(config):
        raise ConfigError(f"{path}: has none of the sections of MMEngine's runner")
    return config


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return ConfigDict({key: _plain(child) for key, child in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    path = value
    if callable(value) and hasattr(value, "__qualname__"):
        path = f"{value.__module__}.{value.__qualname__}"
    if isinstance(path, str) and path.count(".") > 1:
        return _registered(path) or path
    return path


def _registered(path: str) -> str | None:
    """`scope.Name` of what a dotted path leads to, if a registry has it."""
    top, _, rest = path.partition(".")
    if top not in SCOPES or not re.fullmatch(r"[\w.]+", rest):
        return None
    scope = attach(top)
    kind = import_path(path).target
    return f"{top}.{kind.__name__}" if scope.registers(kind) else None
