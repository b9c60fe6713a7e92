"""What the commands say: results on stdout, one-line complaints on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from devrun.redact import redact
from devrun.text import escape_controls, one_line


def say(text: str = "") -> None:
    """Write `text` and a newline to stdout, without secrets and controls."""
    sys.stdout.write(f"{escape_controls(redact(text))}\n")
    sys.stdout.flush()


def complain(text: object, kind: str = "error") -> None:
    """Write `devrun: error: ...` to stderr, on one line whatever `text` holds."""
    sys.stderr.write(f"devrun: {kind}: {one_line(text)}\n")
    sys.stderr.flush()


def say_found(found: Any, as_json: bool, words: Callable[[Any], str]) -> None:
    """What a rehearsal found: in words, or its data as JSON."""
    if as_json:
        from devrun.log.jsonlines import plain

        say(json.dumps(plain(asdict(found)), indent=2))
    else:
        say(words(found))
