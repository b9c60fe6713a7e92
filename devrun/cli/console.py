"""What the commands say: results on stdout, one-line complaints on stderr."""

from __future__ import annotations

import sys

__all__ = ["complain", "one_line", "say"]


def say(text: str = "") -> None:
    """Write `text` and a newline to stdout."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def complain(text: object, kind: str = "error") -> None:
    """Write `devrun: error: ...` to stderr, on one line whatever `text` holds."""
    sys.stderr.write(f"devrun: {kind}: {one_line(text)}\n")
    sys.stderr.flush()


def one_line(text: object) -> str:
    """`text` without line breaks and without characters that steer a terminal."""
    words = " ".join(str(text).split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
