"""A tree as text that loads back equal: Python, YAML or JSON; secrets masked."""

from __future__ import annotations

import functools
import itertools
import json
import keyword
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from devrun.config.origin import config_error, describe, redacted
from devrun.text import escape_controls

_WIDTH = 88


def to_python(tree: Mapping[Any, Any], *, strict: bool = True) -> str:
    """Assignments, one for each top-level key, laid out to read.

    A value that no text can stand for raises ConfigError when `strict`, else its
    repr is written as a string.
    """
    plain = _simple(redacted(dict(tree)), strict)
    lines: list[str] = []
    for key in plain:
        name = key if _is_name(key) else f"globals()[{key!r}]"
        lines.append(f"{name} = {_layout(plain[key], _WIDTH - len(name) - 3)}\n")
    return "".join(lines)


def to_yaml(tree: Mapping[Any, Any]) -> str:
    """YAML 1.2; tuples become lists."""
    import yaml

    plain = _simple(redacted(dict(tree)), True, (str, int, float))
    text: str = yaml.dump(
        plain,
        Dumper=_dumper(),
        sort_keys=False,
        default_flow_style=None,
        allow_unicode=True,
        width=_WIDTH,
    )
    # what is not printable is in double quotes, where YAML reads these escapes
    return escape_controls(text)


def to_json(tree: Mapping[Any, Any]) -> str:
    """JSON; tuples become lists, special floats are Python's `NaN` words."""
    plain = _simple(redacted(dict(tree)), True, str)
    return json.dumps(plain, indent=2) + "\n"


def to_plain(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """What JSON can hold of a tree, to compare with that of another run.

    An object that no text can stand for is there as its repr, without its address.
    """
    plain = _simple(redacted(dict(tree)), False, object)
    text = json.dumps(plain, skipkeys=True, default=repr)
    found: dict[str, Any] = json.loads(re.sub(r" at 0x[0-9a-f]+", "", text))
    return found


FORMATS: dict[str, Callable[[Mapping[Any, Any]], str]] = {
    ".py": to_python,
    ".yaml": to_yaml,
    ".yml": to_yaml,
    ".json": to_json,
}


def _simple(
    value: Any, strict: bool, keys: Any = None, path: tuple[Any, ...] = ()
) -> Any:
    """`value` in exact built-in types; classes and functions as dotted paths.

    With `keys`, the types that a key may have, tuples become lists.
    """

    def inner(key: Any, child: Any) -> Any:
        return _simple(child, strict, keys, (*path, key))

    if isinstance(value, dict):
        names = [_simple(key, strict) for key in value]
        for name in names:
            if keys is not None and not isinstance(name, keys):
                reason = (
                    f"the key {describe(name)} has no form here; dump to a .py file"
                )
                raise config_error(reason, None, path)
        return dict(zip(names, itertools.starmap(inner, value.items())))
    if isinstance(value, (list, tuple, range)):
        items = itertools.starmap(inner, enumerate(value))
        return tuple(items) if isinstance(value, tuple) and not keys else list(items)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):  # a subclass, such as numpy.str_, prints oddly
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if strict:
        raise config_error(
            f"{describe(value)} cannot be written to a file; use text, a number, "
            "a list or a dict",
            None,
            path,
        )
    return repr(value)


@functools.lru_cache(maxsize=None)
def _dumper() -> Any:
    import yaml

    from devrun.config.yaml_reader import FLOAT, INTEGER

    class Dumper(yaml.SafeDumper):
        """Puts in quotes whatever YAML 1.1 or 1.2 would not read as text."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, data: str) -> Any:
        # Line breaks beyond "\n" survive only in double quotes, as escapes.
        style = None if data.isprintable() else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Dumper.add_representer(str, text)
    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, None)
    Dumper.add_implicit_resolver("tag:yaml.org,2002:int", INTEGER, None)
    return Dumper


# Python ------------------------------------------------------------------------


def _is_name(key: Any) -> bool:
    # Python reads some letters beyond ASCII as others (NFKC).
    is_name = isinstance(key, str) and key.isascii() and key.isidentifier()
    return is_name and not keyword.iskeyword(key)


def _layout(value: Any, room: float = math.inf, indent: int = 0) -> str:
    """`value` on one line of less than `room` characters, else an item a line."""
    if isinstance(value, dict) and all(map(_is_name, value)):
        left, right = "dict(", ")"
        items = [(f"{key}=", child) for key, child in value.items()]
    elif isinstance(value, dict):
        left, right = "{}"
        items = [(f"{_layout(key)}: ", child) for key, child in value.items()]
    elif isinstance(value, (list, tuple)):
        left, right = "[]" if isinstance(value, list) else "()"
        items = [("", child) for child in value]
    elif isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    else:
        return repr(value)
    inside = ", ".join(name + _layout(child) for name, child in items)
    comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
    if not items or len(left + inside + comma + right) < room:
        return left + inside + comma + right
    lines = [f"{left}\n"]
    for name, child in items:
        text = _layout(child, _WIDTH - indent - len(name) - 5, indent + 4)
        lines.append(f"{' ' * indent}    {name}{text},\n")
    return "".join(lines) + f"{' ' * indent}{right}"
