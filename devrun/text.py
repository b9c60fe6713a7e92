"""Text that is safe to show: it cannot steer a terminal, reorder itself or flood it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from devrun.redact import redact

LINE = 2000
"""Characters of a message on one line; an error's text may be of any length."""
RECORD = 20_000
"""Characters of a record of several lines, such as a traceback."""
_LOOKED_AT = 4 * RECORD

_NOT_ASCII = re.compile(r"[^\x20-\x7e]")
_NOT_LAYOUT = re.compile(r"[^\x20-\x7e\n\t]")


def escape(text: object, limit: int = 200) -> str:
    """`text` on one line, control characters as `\\x1b`, cut after `limit`.

    For names and values that come from outside: metric names, paths, class names.
    """
    shown = str(text)
    if len(shown) > limit:
        shown = f"{shown[:limit]}...({len(shown)} characters)"
    return _NOT_ASCII.sub(_printable, shown)


def escape_controls(text: str) -> str:
    """`text` with its tabs and line breaks kept and every other control escaped."""
    return _NOT_LAYOUT.sub(_printable, text.replace("\r\n", "\n"))


def escape_lines(text: str) -> str:
    """What leaves the process as a record: without secrets, escaped, of bounded size.

    Lines after the first are indented, so that none of them can pass for a record.
    """
    shown = _cut(redact(_cut(text, _LOOKED_AT)), RECORD)
    return escape_controls(shown).replace("\n", "\n    ")


def one_line(text: object) -> str:
    """What leaves the process as a message: as a record, on one line."""
    shown = redact(_cut(str(text), _LOOKED_AT))
    return _NOT_ASCII.sub(_printable, _cut(joined(shown), LINE))


def joined(text: object) -> str:
    """The words of `text` on one line, to stand inside a message: another's error."""
    return " ".join(str(text).split())


def listed(names: Sequence[Any], most: int) -> str:
    """The first `most` of the names, on one line whatever is in them."""
    shown = [
        name if name.isprintable() else repr(name) for name in map(str, names[:most])
    ]
    more = len(names) - most
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def size_text(size: float) -> str:
    """Bytes as `1.5 GiB` or `20 MiB`."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """A line of each row, its cells below each other.

    Args:
        numbers: all columns but the first end below each other.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.rjust(width) if numbers and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def _cut(text: str, limit: int) -> str:
    """The beginning and the end, which says what to do, of a text that is too long."""
    if len(text) <= limit:
        return text
    end = limit // 4
    left_out = len(text) - limit
    return f"{text[: limit - end]} ...({left_out} characters)... {text[-end:]}"


def _printable(match: re.Match[str]) -> str:
    """The character if it prints as itself, else its escape.

    Controls, separators of lines, what changes the direction of text, invisible and
    unassigned characters, and lone surrogates, which cannot be encoded.
    """
    char = match.group()
    return char if char.isprintable() else ascii(char)[1:-1]


_SIZE = re.compile(r"(\d+(?:\.\d+)?) *(|[KMGT]i?B?)", re.IGNORECASE)


def parsed_size(text: str) -> int | None:
    """Bytes of `24GiB`, `24G` (the same), `24GB` or `1000`; None if it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    unit = match[2].upper()
    base = 1000 if unit.endswith("B") and "I" not in unit else 1024
    return int(float(match[1]) * base ** " KMGT".index(unit[:1] or " "))
