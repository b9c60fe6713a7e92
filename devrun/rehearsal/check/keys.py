"""Keys of a config: where they stand, and how a change of them is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from devrun.config.tree import inside, where


def line_of(cfg: Any, *keys: str) -> str | None:
    """`file:line` of the first of the dotted keys that the config has."""
    for key in keys:
        parent, _, name = key.rpartition(".")
        owner = inside(cfg, parent) if parent else cfg
        if hasattr(owner, "get") and name in owner:
            origin = where(owner, name).origin
            if origin is not None:
                return str(origin)
    return None


def given(cfg: Any, *keys: str) -> str:
    """The first of the dotted keys that the config has, else the last."""
    return next((key for key in keys if inside(cfg, key) is not None), keys[-1])


def pasted(changes: Mapping[str, Any]) -> str:
    """Changes of a config as one line, each `key: value`."""
    return "; ".join(f"{key}: {_flow(value)}" for key, value in changes.items())


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...").strip()
