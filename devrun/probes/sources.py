"""Lines of the user's classes and modules, found in their source."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
from types import ModuleType
from typing import Any

from torch import nn

from devrun.probes.sites import user_line

_ADDS = ("append", "appendleft", "extend", "insert", "add")


def assigned(owner: type | ModuleType, name: str) -> tuple[str | None, str]:
    """`file:line` and text of the assignment of `self.name`, or of `name` itself.

    None where it is in no code of the user's or of a library of models.

    Args:
        owner: the class, or the module, that it is an attribute of.
    """
    is_module = isinstance(owner, ModuleType)
    start, word = r"" if is_module else r"\s*", re.escape(name)
    registers = rf"\s*self\.register_\w+\([\"']{word}[\"']"
    own = re.compile(rf"\s*self\.{word}\s*(:|=[^=])|{registers}")
    plain = re.compile(rf"{start}{word}\s*(:|=[^=])")
    for one in (owner,) if is_module else owner.__mro__:
        lines, first, file = _source(one)
        for wanted in (own, plain):
            for number, line in enumerate(lines, max(first, 1)):
                if wanted.match(line) and user_line([(file, number)]):
                    return f"{file}:{number}", linecache.getline(file, number).strip()
    return None, ""


def _source(owner: type | ModuleType) -> tuple[list[str], int, str]:
    """Its lines, the number of the first, and its file; no lines where it has none."""
    try:
        lines, first = inspect.getsourcelines(owner)
        return lines, first, str(inspect.getfile(owner))
    except (OSError, TypeError):
        return [], 0, ""


def stored(owner: type, name: str) -> str | None:
    """The last line of the class that puts something into `self.name`."""
    lines, first, file = _source(owner)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    nodes: list[Any] = [one for one in ast.walk(tree) if _stores(one, name)]
    found = [one.lineno for one in nodes]
    return user_line([(file, first + max(found) - 1)]) if found else None


def _stores(node: Any, name: str) -> bool:
    """`self.name = ...`, alone or among others, or `self.name.append(...)`."""
    if isinstance(node, ast.Call):
        called: Any = node.func
        adds = getattr(called, "attr", None) in _ADDS
        return adds and getattr(called.value, "attr", None) == name
    stored = isinstance(getattr(node, "ctx", None), ast.Store)
    if isinstance(node, ast.Subscript):
        node = node.value
    return stored and getattr(node, "attr", None) == name


def made_at(model: nn.Module, name: str) -> str | None:
    """The user's line that makes a parameter or module, or the module that it is in."""
    site, owner = None, model
    for part in name.split("."):
        site = assigned(type(owner), part)[0] or site
        owner = getattr(owner, part)
    return site
