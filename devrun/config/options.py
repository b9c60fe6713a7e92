"""`--cfg-options key=value ...`: the words of the command line as values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from devrun.config.limits import MAX_DEPTH, MAX_STRING, Budget, check_key
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
    reader = _Reader(text)
    try:
        items, commas = reader.items("")
    except _NotAList:
        return _atom(text.strip())
    if commas:
        return items
    return items[0] if items else ""


class _NotAList(Exception):  # noqa: N818 - a way back to plain text
    """The text is no well-formed row of values."""


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._budget = Budget()
        self._at = 0
        self._depth = 0

    def items(self, close: str) -> tuple[list[Any], bool]:
        """Values up to `close` (or the end), and whether commas stand between them.

        A comma before the end adds nothing, as in `(1,)`.
        """
        found: list[Any] = []
        commas = False
        while True:
            self._space()
            if self._ends(close) and (commas or close or not found):
                return found, commas
            found.append(self._value(close))
            self._space()
            if self._ends(close):
                return found, commas
            if self._peek() != ",":
                raise _NotAList
            self._at += 1
            commas = True

    def _ends(self, close: str) -> bool:
        if self._peek() == close:
            self._at += len(close)
            return True
        return False

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _space(self) -> None:
        while self._peek().isspace():
            self._at += 1

    def _value(self, close: str) -> Any:
        start = self._at
        self._budget.charge(2, 300)
        char = self._peek()
        if char and char in "\"'":
            quoted = self._quoted(char)
            self._space()
            if quoted is not None and self._peek() in (",", close, ""):
                return quoted
            self._at = start  # 'don't: a quote inside a word is a letter
        elif char in _CLOSING:
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
            self._at += 1
            made = self._dict() if char == "{" else self.items(_CLOSING[char])[0]
            self._depth -= 1
            return tuple(made) if char == "(" else made
        return _atom(self._bare(close))

    def _quoted(self, quote: str) -> str | None:
        """The text up to the closing quote; None, without moving, if none."""
        end = self._text.find(quote, self._at + 1)
        if end < 0:
            return None
        text = self._text[self._at + 1 : end]
        self._at = end + 1
        return text

    def _bare(self, close: str, also: str = "") -> str:
        """Text up to a comma or `close`, brackets inside it in pairs."""
        start = self._at
        open_brackets: list[str] = []
        while char := self._peek():
            if open_brackets and char == open_brackets[-1]:
                open_brackets.pop()
            elif not open_brackets and char in (",", close, also):
                break
            elif char in _CLOSING:
                open_brackets.append(_CLOSING[char])
            elif char in "])}":
                raise _NotAList
            self._at += 1
        if open_brackets or (close and not char):
            raise _NotAList
        return self._text[start : self._at].strip()

    def _dict(self) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        while True:
            self._space()
            if self._ends("}"):
                return made
            key = self._key()
            self._space()
            if self._peek() != ":":
                raise _NotAList
            self._at += 1
            self._space()
            made[key] = self._value("}")
            self._space()
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "}":
                raise _NotAList

    def _key(self) -> Any:
        char = self._peek()
        quoted = self._quoted(char) if char and char in "\"'" else None
        key = _atom(self._bare("}", also=":")) if quoted is None else quoted
        check_key(key)
        return key


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
