"""Text that is safe to show: it cannot steer a terminal or pass for a record."""

from __future__ import annotations

import re

__all__ = ["escape", "escape_lines"]

# C0 and C1 controls, DEL, the line and paragraph separators, the characters that
# change the direction of text, and lone surrogates, which cannot be encoded.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_UNSAFE_BUT_LAYOUT = re.compile(
    _UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f")
)


def escape(text: object, limit: int = 200) -> str:
    """`text` on one line, control characters as `\\x1b`, cut after `limit`.

    For names and values that come from outside: metric names, paths, class names.
    """
    shown = str(text)
    if len(shown) > limit:
        shown = f"{shown[:limit]}...({len(shown)} characters)"
    return _UNSAFE.sub(_as_ascii, shown)


def escape_lines(text: str) -> str:
    """`text` with its tabs and line breaks kept and every other control escaped.

    Lines after the first are indented, so that none of them can pass for a record.
    """
    shown = _UNSAFE_BUT_LAYOUT.sub(_as_ascii, text.replace("\r\n", "\n"))
    return shown.replace("\n", "\n    ")


def _as_ascii(match: re.Match[str]) -> str:
    return ascii(match.group())[1:-1]
