"""`--cfg-options key=value ...`: the words of the command line as values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from devrun.config.limits import MAX_DEPTH, MAX_STRING
from devrun.config.origin import describe

_CLOSING = {"[": "]", "(": ")", "{": "}"}


class DictAction(argparse.Action):
    """Collects `key=value` words in a dict, as MMCV's action of that name.

    Use with `nargs="+"`; given several times, the words add up. A word without `=` or
    with an empty key is a usage error.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        words = [values] if isinstance(values, str) else list(values or [])
        options = dict(getattr(namespace, self.dest, None) or {})
        for word in words:
            key, equals, text = str(word).partition("=")
            if not equals:
                self._fail(f"{describe(word)} has no '='; write key=value")
            if not all(part.strip() for part in key.split(".")):
                self._fail(f"{describe(word)}: the key is words with dots between them")
            try:
                options[key.strip()] = parse_value(text)
            except ValueError as error:
                self._fail(f"{key.strip()[:80]}: {error}")
        setattr(namespace, self.dest, options)

    def _fail(self, reason: str) -> NoReturn:
        raise argparse.ArgumentError(self, reason)


def parse_value(text: str) -> Any:
    """The value that `text` spells.

    `1`, `2.5`, `true`, `None` are what they look like; `1,2` and `[1,2]` lists,
    `(1,2)` a tuple, `{'a': 1}` a dict, nested as wished; `'...'` and `"..."` text.
    Anything else is text, unbalanced brackets included.

    Raises:
        ValueError: too long or nested too deeply.
    """
    if len(text) > MAX_STRING or "\0" in text:
        raise ValueError("a value that long, or with a NUL character, is not taken")
    try:
        values = [_value(part, 0) for part in _parts(text)]
    except _NotAList:
        return _atom(text.strip())
    return values if text.strip()[-1:] == "," or len(values) > 1 else values[0]


class _NotAList(Exception):  # noqa: N818 - a way back to plain text
    """The text is no well-formed row of values."""


def _value(text: str, depth: int) -> Any:
    """The value of one part, in its brackets or without any."""
    text = text.strip()
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if text[:1] not in _CLOSING or text[-1:] != _CLOSING[text[0]] or len(text) < 2:
        return _atom(text)
    parts = _parts(text[1:-1]) if text[1:-1].strip() else []
    if text[0] == "{":
        pairs = [_parts(part, ":", 1) for part in parts]
        if any(len(pair) != 2 for pair in pairs):
            raise _NotAList
        return {_atom(key.strip()): _value(value, depth + 1) for key, value in pairs}
    made = [_value(part, depth + 1) for part in parts]
    return tuple(made) if text[0] == "(" else made


def _parts(text: str, sign: str = ",", most: int = -1) -> list[str]:
    """`text` between the signs that are in no bracket and no quotes, `most` of them.

    A comma at the end adds nothing, as in `(1,)`. A quote inside a word is a letter.
    """
    parts: list[str] = []
    open_brackets: list[str] = []
    start = at = 0
    before = ","
    while at < len(text):
        char = text[at]
        end = text.find(char, at + 1) if char in "\"'" and before in ",:[({" else -1
        if end > 0:
            at = end
        elif char == sign and not open_brackets and len(parts) != most:
            parts.append(text[start:at])
            start = at + 1
        elif char in _CLOSING:
            open_brackets.append(_CLOSING[char])
        elif char in "])}" and (not open_brackets or open_brackets.pop() != char):
            raise _NotAList
        before = before if char.isspace() else char
        at += 1
    if open_brackets:
        raise _NotAList
    last = text[start:]
    return parts if parts and sign == "," and not last.strip() else [*parts, last]


def _atom(text: str) -> Any:
    """MMCV's rule for one word."""
    if text[:1] in ("'", '"') and len(text) > 1 and text[-1] == text[0]:
        return text[1:-1]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text == "None":
        return None
    if len(text) < 400:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text
