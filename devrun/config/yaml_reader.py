"""Strict YAML to a tree with line numbers.

The core schema of YAML 1.2 (`1e-3` and `0o17` are numbers; `no`, `on`, `12:30:45`
and `1_000` are text), read from the parser's events: no tag can build an object, a
duplicate key is an error, depth, size and alias expansion are limited. The merge key
`<<` works with aliases, as most YAML in use expects.
"""

from __future__ import annotations

import re
from typing import Any

from devrun.config.limits import MAX_DEPTH, Budget, TooMuch, check_key
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


_DIRECTIVES = 100


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


def read_yaml(text: str, file: str, budget: Budget) -> ConfigDict:
    """The mapping in `text`; an empty one where nothing is written.

    Raises:
        ConfigError: text that is no single YAML mapping of plain values.
    """
    import yaml  # here: a run from a Python config never needs it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(file, budget)
    if len(re.findall(r"^%", text, re.MULTILINE)) > _DIRECTIVES:
        # The parser compares each with all before it.
        reason = f"more than {_DIRECTIVES} lines that begin with '%'; remove them"
        raise config_error(reason, Origin(file))
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        reason = (error.problem or error.context or "it cannot be read").strip()
        raise config_error(f"not valid YAML: {reason}", Origin(file, line)) from None
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", None) or str(error).split("\n", 1)[0]
        position = getattr(error, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else 0
        raise config_error(f"not valid YAML: {reason}", Origin(file, line)) from None
    return builder.result()


class _Open:
    """A mapping or sequence whose end has not been read yet."""

    def __init__(self, node: Any, origin: Origin, anchor: str | None) -> None:
        self.node, self.origin, self.anchor = node, origin, anchor
        self.key: Any = None
        self.key_origin: Origin | None = None
        self.merged: list[tuple[Any, Origin]] = []
        self.size = 1


class _Builder:
    def __init__(self, file: str, budget: Budget) -> None:
        self._file = file
        self._budget = budget
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._documents = 0
        self._root: Any = None

    def take(self, event: Any) -> None:
        kind = type(event).__name__
        origin = Origin(self._file, event.start_mark.line + 1)
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
            self._add(*self._anchors[event.anchor], origin)
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
            raise config_error(reason, Origin(self._file, 1))
        return self._root

    def _path(self) -> list[Any]:
        return [level.key for level in self._stack if level.key is not None]

    def _open(self, event: Any, origin: Origin, node: Any) -> None:
        if len(self._stack) > MAX_DEPTH:
            reason = f"nested deeper than {MAX_DEPTH} levels; flatten it"
            raise config_error(reason, origin, self._path()[:4])
        self._budget.charge(5, 500 if isinstance(node, ConfigDict) else 200)
        if isinstance(node, ConfigDict):
            node._meta_.origin = origin
        self._stack.append(_Open(node, origin, event.anchor))

    def _close(self) -> None:
        level = self._stack.pop()
        for merged, origin in level.merged:
            for key, value in merged.items():
                if key not in level.node:
                    place(level.node, key, value, origin_of(merged, key) or origin)
        if level.anchor:
            self._anchors[level.anchor] = (level.node, level.size)
        self._add(level.node, level.size, level.origin, counted=True)

    def _scalar(self, event: Any, origin: Origin) -> None:
        value: Any = event.value
        if not event.style:
            try:
                value = scalar(event.value)
            except ValueError as error:
                raise config_error(str(error), origin, self._path()) from None
        level = self._stack[-1] if self._stack else None
        is_key = level and isinstance(level.node, ConfigDict) and not level.key_origin
        if is_key and not event.style and event.value == "<<":
            value = _MERGE_KEY
        if event.anchor:
            self._anchors[event.anchor] = (value, 1)
        self._add(value, 1, origin)

    def _add(
        self, value: Any, size: int, origin: Origin, *, counted: bool = False
    ) -> None:
        try:
            self._budget.charge(0 if counted else 2 * size, 100)
        except TooMuch:
            reason = "too many values, aliases counted; make it smaller"
            raise config_error(reason, origin, self._path()[:4]) from None
        if not self._stack:
            self._root = value
            return
        level = self._stack[-1]
        level.size += size
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
        try:
            if key is not _MERGE_KEY:
                check_key(key)
        except TooMuch as error:
            raise config_error(str(error), origin, self._path()) from None
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
