"""The methods of text, lists and dicts that a Python configuration may call."""

from __future__ import annotations

import string
from typing import Any

from devrun.config.python_values import Budget, copy_dict, text, update

__all__ = ["call_method", "method_names"]

_METHODS: dict[type, set[str]] = {
    str: {
        "capitalize", "count", "endswith", "find", "format", "index", "isdigit",
        "join", "lower", "lstrip", "removeprefix", "removesuffix", "replace", "rsplit",
        "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper",
    },
    list: {
        "append", "clear", "copy", "count", "extend", "index", "insert", "pop",
        "remove", "reverse", "sort",
    },
    tuple: {"count", "index"},
    set: {"add", "copy", "difference", "discard", "intersection", "union", "update"},
    dict: {
        "clear", "copy", "get", "items", "keys", "pop", "setdefault", "update",
        "values",
    },
}  # fmt: skip


def method_names(value: Any) -> set[str]:
    for kind, names in _METHODS.items():
        if isinstance(value, kind):
            return names
    return set()


def call_method(
    budget: Budget, value: Any, name: str, args: list[Any], options: dict[str, Any]
) -> Any:
    """`value.name(*args, **options)`; `name` is one of `method_names(value)`."""
    budget.inspect(*args, *options.values())
    if isinstance(value, dict):
        return _call_on_dict(budget, value, name, args, options)
    if name == "format":
        return _format(budget, value, args, options)
    if isinstance(value, str):
        _room_for_text(budget, value, name, args)
    elif name in ("append", "pop", "add", "discard"):
        budget.charge(1)
    elif name in ("count", "index", "remove", "sort"):
        budget.inspect(value)
    else:
        budget.room(items=len(value))
    if "key" in options:
        raise TypeError(f"{name} with key= is not known here")
    kind = next(kind for kind in _METHODS if isinstance(value, kind))
    return getattr(kind, name)(value, *args, **options)


def _call_on_dict(
    budget: Budget, value: Any, name: str, args: list[Any], options: dict[str, Any]
) -> Any:
    if name == "update":
        update(budget, value, *(args or [{}]), **options)
        return None
    if name == "copy":
        return copy_dict(value)
    if name in ("keys", "values", "items"):
        budget.room(items=len(value))
        return list(getattr(dict, name)(value))
    return getattr(dict, name)(value, *args, **options)


def _format(
    budget: Budget, value: str, args: list[Any], options: dict[str, Any]
) -> str:
    """`value.format(...)` by position or name, never into an attribute or item."""
    parts: list[str] = []
    position = 0
    for literal, name, spec, conversion in string.Formatter().parse(value):
        budget.charge(1)
        parts.append(literal)
        if name is None:
            continue
        if name == "":
            name, position = str(position), position + 1
        if "{" in (spec or "") or not (name.isdecimal() or name.isidentifier()):
            raise ValueError("only {}, {0} and {name} are filled by format(...)")
        given = args[int(name[:6])] if name.isdecimal() else options[name]
        parts.append(text(budget, given, conversion or "s", spec or ""))
        budget.room(chars=sum(map(len, parts)))
    return "".join(parts)


def _room_for_text(budget: Budget, value: str, name: str, args: list[Any]) -> None:
    size = len(value)
    if name == "join" and args:
        budget.room(chars=size * len(args[0]) + budget.inspect(args[0]))
    elif name == "replace" and len(args) > 1:
        found = value.count(args[0]) if isinstance(args[0], str) else 0
        budget.room(chars=size + found * len(args[1]))
    elif name in ("split", "rsplit", "splitlines"):
        budget.room(chars=size, items=size // 8)
    else:
        budget.room(chars=size)
