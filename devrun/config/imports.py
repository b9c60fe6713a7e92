"""`custom_imports`: modules that register what the configuration names."""

from __future__ import annotations

import importlib
import logging
from types import ModuleType
from typing import Any

from devrun.config.origin import config_error, describe, hint_for
from devrun.config.tree import ConfigDict, origin_of
from devrun.errors import ConfigTypeError

__all__ = ["import_custom"]

_KEY = "custom_imports"


def import_custom(cfg: ConfigDict) -> list[ModuleType]:
    """Import what `cfg["custom_imports"]` lists; the modules, in order.

    Raises:
        ConfigError: a wrong form, or a module that cannot be imported (and
            `allow_failed_imports` is not set).
    """
    wish = cfg.get(_KEY)
    if wish is None:
        return []
    origin = origin_of(cfg, _KEY)
    if not isinstance(wish, ConfigDict):
        reason = f"takes dict(imports=[...]), not {describe(wish)}"
        raise config_error(reason, origin, [_KEY], ConfigTypeError)
    for key in wish:
        if key not in ("imports", "allow_failed_imports"):
            hint = hint_for(key, ("imports", "allow_failed_imports"))
            reason = f"unknown key; {hint}"
            raise config_error(reason, origin_of(wish, key), [_KEY, key])
    names = wish.get("imports") or []
    names = [names] if isinstance(names, str) else names
    allow = wish.get("allow_failed_imports", False)
    if not isinstance(names, (list, tuple)) or not all(map(_is_module, names)):
        reason = "takes module names such as mypackage.models"
        raise config_error(
            reason, origin_of(wish, "imports"), [_KEY, "imports"], ConfigTypeError
        )
    found = (_import(name, wish, bool(allow)) for name in names)
    return [module for module in found if module is not None]


def _is_module(name: Any) -> bool:
    return isinstance(name, str) and all(p.isidentifier() for p in name.split("."))


def _import(name: str, wish: ConfigDict, allow: bool) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception as error:
        reason = (
            f"importing {name!r} failed: {type(error).__name__}: {error}; install "
            "it, or put its directory on PYTHONPATH"
        )
        problem = config_error(reason, origin_of(wish, "imports"), [_KEY, "imports"])
        if not allow:
            raise problem from error
        logging.getLogger("devrun").warning("%s", problem)
        return None
