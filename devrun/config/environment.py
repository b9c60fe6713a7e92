"""Environment variables in a configuration: `${env:NAME}`, `${env:NAME:default}`.

The value read is the variable's text (`${env.int:NAME}` and `${env.float:NAME}` give
numbers); what was written is kept beside it, and that is what a dump shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from devrun.config.origin import describe
from devrun.redact import Reference, remember

_REFERENCE = re.compile(
    r"\$\{env(?:\.(?P<kind>\w{0,32}))?:(?P<name>[^:{}]{0,256})"
    r"(?::(?P<default>[^{}]{0,4096}))?\}"
)


class EnvStr(Reference, str):
    pass


class EnvInt(Reference, int):
    pass


class EnvFloat(Reference, float):
    pass


def resolve(text: str, pay: Callable[[int], None] = lambda chars: None) -> Any:
    """`text` with its references replaced; the same object when it has none.

    `pay(chars)` is called with the length of each text before it is made.

    Raises:
        ValueError: a variable that is not set, a wrong form or a value that is no
            number; the message has no place yet.
    """
    if "${env" not in text:
        return text
    whole = _REFERENCE.fullmatch(text)
    value: EnvStr | EnvInt | EnvFloat
    if whole and whole["kind"] is not None:
        value = _number(whole["kind"], _read(whole))
    else:
        words = []
        for match in _REFERENCE.finditer(text):
            words.append(_read_text(match))
            pay(len(words[-1]))
        pay(len(text) + sum(map(len, words)))
        given = iter(words)
        replaced = _REFERENCE.sub(lambda _: next(given), text)
        if "${env" in _REFERENCE.sub("", text):
            raise ValueError(
                f"{describe(text)} is no environment reference; "
                "write ${env:NAME} or ${env:NAME:default}"
            )
        value = EnvStr(replaced)
    value.template = text
    return value


def _read_text(match: re.Match[str]) -> str:
    if match["kind"] is not None:
        raise ValueError(
            f"{describe(match[0])} gives a number only when it is the whole value; "
            "write ${env:NAME} inside a text"
        )
    return _read(match)


def _read(match: re.Match[str]) -> str:
    name = match["name"]
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{describe(name)} is no name of an environment variable")
    found = os.environ.get(name, match["default"])
    if found is None:
        raise ValueError(
            f"the environment variable {name} is not set; set it, or give a "
            f"default as ${{env:{name}:text}}"
        )
    if "\0" in found or not _is_unicode(found):
        raise ValueError(f"the environment variable {name} is not UTF-8 text")
    if name in os.environ:  # a default is in the config for all to read
        remember(found, f"${{env:{name}}}")
    return found


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _number(kind: str, text: str) -> EnvInt | EnvFloat:
    kinds: dict[str, type[EnvInt] | type[EnvFloat]] = {"int": EnvInt, "float": EnvFloat}
    if kind not in kinds:
        raise ValueError(
            f"${{env.{kind}:...}} is not known; use ${{env:NAME}} for text, "
            "${env.int:NAME} or ${env.float:NAME} for a number"
        )
    try:
        return kinds[kind](text)
    except ValueError:
        raise ValueError(
            f"the environment gives text that is no {kind}; set a number"
        ) from None
