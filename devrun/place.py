"""Where a value of a config was written, and its form in messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Tuple

from devrun.text import escape

KeyPath = Tuple[Any, ...]


@dataclass(frozen=True)
class Origin:
    """A line of a file; line 0 means the place has no lines."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        name = escape(self.file)
        return f"{name}:{self.line}" if self.line else name


COMMAND_LINE = Origin("command line")


@dataclass(frozen=True)
class Place:
    """A value's file and line, and the keys that lead to it; false if it is empty.

    As text it begins a message: `"file:line: a.b.c: "`.
    """

    origin: Origin | None = None
    path: KeyPath = ()

    def __bool__(self) -> bool:
        return bool(self.origin or self.path)

    def __str__(self) -> str:
        parts = (self.origin or "", dotted(self.path))
        return "".join(f"{part}: " for part in parts if part)


def dotted(path: Iterable[Any]) -> str:
    return ".".join(escape(part, 80) for part in path)
