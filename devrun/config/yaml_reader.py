"""Strict YAML, and JSON, to a tree with line numbers.

The core schema of YAML 1.2 (`1e-3` and `0o17` are numbers; `no`, `on`, `12:30:45`
and `1_000` are text), read from the parser's events: no tag can build an object, a
duplicate key is an error, depth, size and alias expansion are limited. The merge key
`<<` works with aliases, as most YAML in use expects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from devrun.config.limits import Budget, check_depth
from devrun.config.origin import config_error, describe
from devrun.config.tree import ConfigDict, origin_of, place
from devrun.place import Origin
from devrun.text import escape

INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


_JSON_WORDS = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
"""As Python's `json` writes them."""
_PAIR = re.compile(
    r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""In JSON: one character, in two halves."""


class _MergeKey:
    """Stands for the key `<<`."""

    def __str__(self) -> str:
        return "<<"


_MERGE_KEY = _MergeKey()


def scalar(text: str) -> Any:
    """The value a plain (unquoted) scalar has in the YAML 1.2 core schema.

    Raises:
        ValueError: a number that no int or float holds.
    """
    if text in _WORDS:
        return _WORDS[text]
    if INTEGER.fullmatch(text):
        if len(text) > 1000:
            raise ValueError("a number of more than 1000 digits")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if FLOAT.fullmatch(text):
        lower = text.lower()
        if lower.endswith(("inf", "nan")):
            return float(lower.replace(".", ""))
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"{escape(text, 40)} is too large; write .inf if meant")
        return value
    return text


def read_json(text: str, file: str, budget: Budget) -> ConfigDict:
    """The object in `text`, which is read as YAML is.

    Raises:
        ConfigError: as `read_yaml`.
    """

    def word(text: str) -> Any:
        return _JSON_WORDS[text] if text in _JSON_WORDS else scalar(text)

    # YAML has no character in two halves, and tabs only within a line
    text = _PAIR.sub(lambda found: found[1] + json.loads(f'"{found[2]}"'), text)
    return read_yaml(text.replace("\t", " "), file, budget, word)


def read_yaml(
    text: str, file: str, budget: Budget, plain: Callable[[str], Any] = scalar
) -> ConfigDict:
    """The mapping in `text`; an empty one where nothing is written.

    `plain` gives the values of words that are not in quotes.

    Raises:
        ConfigError: text that is no single mapping of plain values.
    """
    import yaml  # here: a run from a Python config never needs it

    builder = _Builder(file, budget, plain)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(
            error, "context_mark", None
        )
        reason = getattr(error, "problem", None) or getattr(error, "context", None)
        reason = (reason or str(error).split("\n", 1)[0]).strip()
        origin = Origin(file, mark.line + 1 if mark else 0)
        raise config_error(f"not valid YAML: {reason}", origin) from None
    return builder.result()


class _Open:
    """A mapping or sequence whose end has not been read yet."""

    def __init__(self, node: Any, origin: Origin, anchor: str | None) -> None:
        self.node, self.origin, self.anchor = node, origin, anchor
        self.key: Any = None
        self.key_origin: Origin | None = None
        self.merged: list[tuple[Any, Origin]] = []


class _Builder:
    def __init__(self, file: str, budget: Budget, plain: Callable[[str], Any]) -> None:
        self.file = file
        self._plain = plain
        self._budget = budget
        self._stack: list[_Open] = []
        self._anchors: dict[str, Any] = {}
        self._documents = 0
        self._root: Any = None

    def take(self, event: Any) -> None:
        kind = type(event).__name__
        origin = Origin(self.file, event.start_mark.line + 1)
        if getattr(event, "tag", None) not in (None, "!"):
            reason = f"the tag {escape(event.tag, 60)} is not accepted; remove it"
            raise config_error(reason, origin, self._path())
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise config_error("a second document; use one file each", origin)
        elif kind == "ScalarEvent":
            self._scalar(event, origin)
        elif kind == "AliasEvent":
            if event.anchor not in self._anchors:
                reason = f"the alias *{event.anchor} stands before or inside its anchor"
                raise config_error(reason, origin, self._path())
            self._add(self._anchors[event.anchor], origin)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._open(event, origin, ConfigDict() if kind[0] == "M" else [])
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._close()

    def result(self) -> ConfigDict:
        if self._root is None:
            return ConfigDict()
        if not isinstance(self._root, ConfigDict):
            reason = (
                f"the top level must be keys and values, not {describe(self._root)}"
            )
            raise config_error(reason, Origin(self.file, 1))
        return self._root

    def _path(self) -> list[Any]:
        return [level.key for level in self._stack if level.key is not None]

    def _open(self, event: Any, origin: Origin, node: Any) -> None:
        check_depth(origin, tuple(level.key for level in self._stack))
        self._budget.charge(5)
        if isinstance(node, ConfigDict):
            node._meta_.origin = origin
        self._stack.append(_Open(node, origin, event.anchor))

    def _close(self) -> None:
        level = self._stack.pop()
        for merged, origin in level.merged:
            self._budget.charge(len(merged))
            for key, value in merged.items():
                if key not in level.node:
                    place(level.node, key, value, origin_of(merged, key) or origin)
        if level.anchor:
            self._anchors[level.anchor] = level.node
        self._add(level.node, level.origin)

    def _scalar(self, event: Any, origin: Origin) -> None:
        value: Any = event.value
        if not event.style:
            try:
                value = self._plain(event.value)
            except ValueError as error:
                raise config_error(str(error), origin, self._path()) from None
        level = self._stack[-1] if self._stack else None
        is_key = level and isinstance(level.node, ConfigDict) and not level.key_origin
        if is_key and not event.style and event.value == "<<":
            value = _MERGE_KEY
        if event.anchor:
            self._anchors[event.anchor] = value
        self._add(value, origin)

    def _add(self, value: Any, origin: Origin) -> None:
        self._budget.charge(2)
        if not self._stack:
            self._root = value
            return
        level = self._stack[-1]
        if isinstance(level.node, list):
            level.node.append(value)
        elif level.key_origin is None:
            level.key, level.key_origin = self._key(level, value, origin), origin
        else:
            if level.key is _MERGE_KEY:
                self._merge(level, value, origin)
            else:
                place(level.node, level.key, value, level.key_origin)
            level.key = level.key_origin = None

    def _key(self, level: _Open, key: Any, origin: Origin) -> Any:
        if key is not _MERGE_KEY and not isinstance(key, (str, int, float)):
            reason = f"a key must be text, not {describe(key)}; put it in quotes"
            raise config_error(reason, origin, self._path())
        if key in level.node:
            first = origin_of(level.node, key)
            reason = f"given twice (first: {first}); remove one"
            raise config_error(reason, origin, [*self._path(), key])
        return key

    def _merge(self, level: _Open, value: Any, origin: Origin) -> None:
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, ConfigDict):
                reason = f"`<<` takes an alias of a mapping, not {describe(item)}"
                raise config_error(reason, origin, self._path())
            level.merged.append((item, origin))
