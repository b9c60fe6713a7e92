"""A tree as text that loads back equal: Python, YAML or JSON; secrets masked."""

from __future__ import annotations

import functools
import json
import keyword
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from devrun.config.origin import config_error, describe
from devrun.config.python_operations import FUNCTIONS
from devrun.config.redact import redacted
from devrun.text import escape_controls

_WIDTH = 88
_SHADOWING = {*FUNCTIONS, "dict", "globals"}


def to_python(tree: Mapping[Any, Any], *, strict: bool = True) -> str:
    """Assignments, one for each top-level key, laid out to read.

    A value that no text can stand for raises ConfigError when `strict`, else its
    repr is written as a string.
    """
    plain = _simple(redacted(dict(tree)), strict, ())
    lines: list[str] = []
    # A name that hides a function comes last, when no line calls that any more.
    for key in sorted(plain, key=lambda key: key in _SHADOWING):
        value = plain[key]
        if _is_name(key) and key not in _SHADOWING:
            lines.append(f"{key} = {_layout(value, 0, len(key) + 3)}\n")
        else:
            braces = _layout_braces({key: value}, 0)
            lines.append(f"globals().update({braces})\n")
    return "".join(lines)


def to_yaml(tree: Mapping[Any, Any]) -> str:
    """YAML 1.2; tuples and sets become lists."""
    import yaml

    plain = _without_tuples(_simple(redacted(dict(tree)), True, ()), ())
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
    """JSON; tuples and sets become lists, special floats are Python's `NaN` words."""
    plain = _without_tuples(_simple(redacted(dict(tree)), True, ()), (), str)
    return json.dumps(plain, indent=2) + "\n"


def to_plain(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """What JSON can hold of a tree, to compare with that of another run.

    An object that no text can stand for is there as its repr, without its address.
    """
    plain = _without_tuples(_simple(redacted(dict(tree)), False, ()), (), object)
    text = json.dumps(plain, skipkeys=True, default=repr)
    found: dict[str, Any] = json.loads(re.sub(r" at 0x[0-9a-f]+", "", text))
    return found


FORMATS: dict[str, Callable[[Mapping[Any, Any]], str]] = {
    ".py": to_python,
    ".yaml": to_yaml,
    ".yml": to_yaml,
    ".json": to_json,
}


def _simple(value: Any, strict: bool, path: tuple[Any, ...]) -> Any:
    """`value` in exact built-in types; classes and functions as dotted paths."""
    if isinstance(value, dict):
        return {
            _simple(key, strict, path): _simple(child, strict, (*path, key))
            for key, child in value.items()
        }
    if isinstance(value, (list, range)):
        return [_simple(v, strict, (*path, i)) for i, v in enumerate(value)]
    if isinstance(value, tuple):
        return tuple(_simple(v, strict, (*path, i)) for i, v in enumerate(value))
    if isinstance(value, (set, frozenset)):
        return {_simple(item, strict, path) for item in value}
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):  # a subclass, such as numpy.float64, prints oddly
            return value if type(value) is kind else _exact(kind, value)
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


def _without_tuples(value: Any, path: tuple[Any, ...], keys: type | None = None) -> Any:
    if isinstance(value, dict):
        wanted = keys or (str, int, float)
        for key in value:
            if not isinstance(key, wanted):
                reason = f"the key {describe(key)} has no form here; dump to a .py file"
                raise config_error(reason, None, path)
        return {k: _without_tuples(v, (*path, k), keys) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tuples(v, (*path, i), keys) for i, v in enumerate(value)]
    if isinstance(value, set):
        return sorted(value, key=lambda item: (type(item).__name__, item))
    return value


@functools.cache
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


def _source(value: Any) -> str:
    """`value` on one line."""
    if isinstance(value, dict):
        if all(map(_is_name, value)):
            return f"dict({', '.join(f'{k}={_source(v)}' for k, v in value.items())})"
        pairs = ", ".join(f"{_source(k)}: {_source(v)}" for k, v in value.items())
        return f"{{{pairs}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_source, value))}]"
    if isinstance(value, tuple):
        inside = ", ".join(map(_source, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, set):
        return f"{{{', '.join(sorted(map(_source, value)))}}}" if value else "set()"
    if isinstance(value, float) and (value != value or value in (_INF, -_INF)):
        return f"float('{value}')"
    return repr(value)


_INF = float("inf")


def _layout(value: Any, indent: int, used: int) -> str:
    """`value` in as many lines as it needs, `used` columns of the first being taken."""
    one = _source(value)
    if indent + used + len(one) < _WIDTH or not isinstance(value, (dict, list, tuple)):
        return one
    if not value:
        return one
    inner = " " * (indent + 4)
    if isinstance(value, dict):
        if not all(map(_is_name, value)):
            return _layout_braces(value, indent)
        body = "".join(
            f"{inner}{key}={_layout(child, indent + 4, len(key) + 2)},\n"
            for key, child in value.items()
        )
        return f"dict(\n{body}{' ' * indent})"
    body = "".join(f"{inner}{_layout(child, indent + 4, 1)},\n" for child in value)
    left, right = "[]" if isinstance(value, list) else "()"
    return f"{left}\n{body}{' ' * indent}{right}"


def _layout_braces(value: dict[Any, Any], indent: int) -> str:
    body = "".join(
        f"{' ' * (indent + 4)}{_source(key)}: "
        f"{_layout(child, indent + 4, len(_source(key)) + 3)},\n"
        for key, child in value.items()
    )
    return f"{{\n{body}{' ' * indent}}}"


def _exact(kind: Any, value: Any) -> Any:
    """`value` of a subclass as a plain `kind`."""
    return kind.__str__(value) if kind is str else kind(value)
