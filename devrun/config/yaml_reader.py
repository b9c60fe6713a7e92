"""Strict YAML, and JSON, to a tree with line numbers.

The core schema of YAML 1.2 (`1e-3` and `0o17` are numbers; `no`, `on`, `12:30:45`
and `1_000` are text), read from the parser's events: no tag can build an object, a
duplicate key is an error, depth, size and alias expansion are limited. The merge key
`<<` works with aliases, as most YAML in use expects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from devrun.config.limits import Budget, check_depth
from devrun.config.origin import config_error, describe
from devrun.config.tree import ConfigDict, origin_of, place
from devrun.place import KeyPath, Origin
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

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Reader(file, budget, plain, yaml.parse(text, Loader=loader)).root()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error).split("\n", 1)[0]
        origin = Origin(file, mark.line + 1 if mark else 0)
        raise config_error(f"not valid YAML: {reason.strip()}", origin) from None


class _Reader:
    """Makes nodes of the parser's events."""

    def __init__(
        self,
        file: str,
        budget: Budget,
        plain: Callable[[str], Any],
        events: Iterator[Any],
    ) -> None:
        self._file = file
        self._budget = budget
        self._plain = plain
        self._events = events
        self._anchors: dict[str, Any] = {}

    def root(self) -> ConfigDict:
        root: Any = None
        for event in self._events:
            if type(event).__name__ != "DocumentStartEvent":
                continue
            if root is not None:
                reason = "a second document; use one file each"
                raise config_error(reason, self._origin(event))
            root = self._value(next(self._events), ())
        if root is not None and not isinstance(root, ConfigDict):
            reason = f"the top level must be keys and values, not {describe(root)}"
            raise config_error(reason, Origin(self._file, 1))
        return root or ConfigDict()

    def _origin(self, event: Any) -> Origin:
        return Origin(self._file, event.start_mark.line + 1)

    def _value(self, event: Any, path: KeyPath) -> Any:
        """The value that begins with `event`."""
        self._budget.charge(5)
        kind, origin = type(event).__name__, self._origin(event)
        if kind == "AliasEvent":
            if event.anchor not in self._anchors:
                reason = f"the alias *{event.anchor} stands before or inside its anchor"
                raise config_error(reason, origin, path)
            return self._anchors[event.anchor]
        if event.tag not in (None, "!"):
            reason = f"the tag {escape(event.tag, 60)} is not accepted; remove it"
            raise config_error(reason, origin, path)
        if kind == "ScalarEvent":
            try:
                value = event.value if event.style else self._plain(event.value)
            except ValueError as error:
                raise config_error(str(error), origin, path) from None
        else:
            check_depth(origin, path)
            of_mapping = kind == "MappingStartEvent"
            value = self._mapping(origin, path) if of_mapping else self._items(path)
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _items(self, path: KeyPath) -> list[Any]:
        items: list[Any] = []
        while type(event := next(self._events)).__name__ != "SequenceEndEvent":
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, origin: Origin, path: KeyPath) -> ConfigDict:
        node = ConfigDict()
        node._meta_.origin = origin
        merged: list[tuple[Any, Origin]] = []
        while type(event := next(self._events)).__name__ != "MappingEndEvent":
            line = self._origin(event)
            key = self._value(event, path)
            if key == "<<" and not event.style:
                merged.append((self._value(next(self._events), path), line))
                continue
            if not isinstance(key, (str, int, float)):
                reason = f"a key must be text, not {describe(key)}; put it in quotes"
                raise config_error(reason, line, path)
            if key in node:
                reason = f"given twice (first: {origin_of(node, key)}); remove one"
                raise config_error(reason, line, (*path, key))
            place(node, key, self._value(next(self._events), (*path, key)), line)
        for value, line in merged:
            for item in value if isinstance(value, list) else [value]:
                self._merge(node, item, line, path)
        return node

    def _merge(self, node: ConfigDict, item: Any, line: Origin, path: KeyPath) -> None:
        if not isinstance(item, ConfigDict):
            reason = f"`<<` takes an alias of a mapping, not {describe(item)}"
            raise config_error(reason, line, path)
        self._budget.charge(len(item))
        for key, value in item.items():
            if key not in node:
                place(node, key, value, origin_of(item, key) or line)
