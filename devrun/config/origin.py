"""Where a value was written, and how a message about it reads.

Every message of this room is one printable line:
`file:line: a.b.c: reason; what to do`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from devrun.errors import ConfigError, nearest
from devrun.redact import Reference, redact
from devrun.text import escape

__all__ = [
    "COMMAND_LINE",
    "KeyPath",
    "Origin",
    "config_error",
    "describe",
    "dotted",
    "hint_for",
    "one_line",
    "prefix",
]

KeyPath = tuple[Any, ...]


@dataclass(frozen=True)
class Origin:
    """A line of a file; line 0 means the place has no lines."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        name = one_line(self.file)
        return f"{name}:{self.line}" if self.line else name


COMMAND_LINE = Origin("command line")


def one_line(text: object, limit: int = 200) -> str:
    """`text` without control, bidirectional or line characters, cut at `limit`."""
    shown = str(text)
    if len(shown) > limit:
        shown = shown[: limit - 3] + "..."
    return escape(shown, limit)


def dotted(path: Iterable[Any]) -> str:
    return ".".join(one_line(part, 80) for part in path)


def describe(value: object) -> str:
    """A value as a message shows it: short, and never the inside of a container."""
    if isinstance(value, dict):
        return f"a dict of {len(value)} keys"
    if isinstance(value, (list, tuple, set, frozenset)):
        return f"a {type(value).__name__.removeprefix('Config').lower()} of " + (
            f"{len(value)} items"
        )
    if isinstance(value, Reference):
        return repr(value.template)  # never what the environment holds
    if isinstance(value, str):
        return one_line(repr(redact(value[:1000])[:100]), 60)
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, (int, float)):
        return repr(value)
    return f"a {type(value).__name__}"


def prefix(origin: Origin | None, path: Iterable[Any] = ()) -> str:
    """`"file:line: a.b.c: "`, or as much of it as is known."""
    parts = [str(origin)] if origin is not None else []
    key = dotted(path)
    if key:
        parts.append(key)
    return "".join(f"{part}: " for part in parts)


def config_error(
    reason: str,
    origin: Origin | None = None,
    path: Iterable[Any] = (),
    kind: type[ConfigError] = ConfigError,
) -> ConfigError:
    return kind(prefix(origin, path) + one_line(reason, 600))


def hint_for(name: object, known: Iterable[Any]) -> str:
    """`errors.nearest` over the first thousand of `known`, whatever their type."""
    names = (str(item)[:80] for item in itertools.islice(known, 1000))
    return one_line(nearest(str(name)[:80], names), 400)
