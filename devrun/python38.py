"""What Python 3.8 lacks and devrun uses: to be deleted with the support of it."""

from __future__ import annotations

import ast
import os
import pkgutil
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any


def unprefixed(text: str, prefix: str) -> str:
    """`str.removeprefix` of Python 3.9."""
    return text[len(prefix) :] if text.startswith(prefix) else text


def unsuffixed(text: str, suffix: str) -> str:
    """`str.removesuffix` of Python 3.9."""
    return text[: -len(suffix)] if suffix and text.endswith(suffix) else text


def unparsed(node: ast.AST) -> str | None:
    """`ast.unparse` of Python 3.9; None before it."""
    unparse = getattr(ast, "unparse", None)
    return None if unparse is None else str(unparse(node))


def entry_points(group: str) -> Iterable[Any]:
    """Those of `group` that installed packages have."""
    found: Any = metadata.entry_points()
    if hasattr(found, "select"):
        found = {group: found.select(group=group)}
    points: Iterable[Any] = found.get(group, ())
    return points


def is_standard(module: str) -> bool:
    """Whether Python's standard library has a module of this name, without dots."""
    if names := getattr(sys, "stdlib_module_names", None):
        return module in names
    folder = os.path.dirname(os.__file__)
    places = [folder, os.path.join(folder, "lib-dynload")]
    names = {found.name for found in pkgutil.iter_modules(places)}
    return module in names or module in sys.builtin_module_names
