"""Environment variables in a configuration: `${env:NAME}`, `${env:NAME:default}`.

The value read is the variable's text; what was written is kept beside it, and that is
what a dump shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from devrun.config.origin import describe
from devrun.redact import Reference, remember

_REFERENCE = re.compile(
    r"\$\{env:(?P<name>[A-Za-z_]\w{0,255})(?::(?P<default>[^{}]{0,4096}))?\}",
    re.ASCII,
)


class EnvStr(Reference, str):
    pass


def resolve(
    text: str, pay: Callable[[int], None] = lambda chars: None
) -> str | Reference:
    """`text` with its references replaced; the same object when it has none.

    `pay(chars)` is called with the length of each variable before it is used.

    Raises:
        ValueError: a variable that is not set, or a wrong form; the message has no
            place yet.
    """
    if "${env" not in text:
        return text
    if "${env" in _REFERENCE.sub("", text):
        raise ValueError(
            f"{describe(text)} is no environment reference; write ${{env:NAME}} or "
            "${env:NAME:default}"
        )

    def read(match: re.Match[str]) -> str:
        found = _read(match)
        pay(len(found))
        return found

    value = EnvStr(_REFERENCE.sub(read, text))
    value.template = text
    return value


def _read(match: re.Match[str]) -> str:
    name = match["name"]
    found = os.environ.get(name, match["default"])
    if found is None:
        raise ValueError(
            f"the environment variable {name} is not set; set it, or give a "
            f"default as ${{env:{name}:text}}"
        )
    if any("\ud800" <= char <= "\udfff" for char in found):
        raise ValueError(f"the environment variable {name} is not UTF-8 text")
    if name in os.environ:  # a default is in the config for all to read
        remember(found, f"${{env:{name}}}")
    return found
