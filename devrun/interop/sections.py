"""Sections of a config for the code of another package, and where they were written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from devrun.config.tree import where
from devrun.place import Place


def in_dicts(kind: Callable[[Any], Any], section: Any) -> Any:
    """A copy of `section`, of `kind` where it has dicts: the package's own, whose keys
    are attributes too."""
    if isinstance(section, dict):
        return kind({key: in_dicts(kind, value) for key, value in section.items()})
    if isinstance(section, list) or type(section) is tuple:
        made = [in_dicts(kind, value) for value in section]
        return tuple(made) if isinstance(section, tuple) else made
    return section


def place_of(name: str, node: Any) -> Place | None:
    """Where `type: name` was written in the section."""
    if isinstance(node, Mapping):
        if node.get("type") == name:
            return where(node, "type")
        node = node.values()
    elif not isinstance(node, (list, tuple)):
        return None
    return next((p for part in node if (p := place_of(name, part)) is not None), None)
