"""JSON text to a tree with line numbers; duplicate keys and deep nesting refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from devrun.config.limits import MAX_DEPTH, Budget, TooMuch
from devrun.config.origin import config_error, describe
from devrun.config.tree import ConfigDict, origin_of, place
from devrun.place import Origin

_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]{0,400}")
_NAMES = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
}


def read_json(
    text: str, file: str, budget: Budget, is_marker: Callable[[str], bool]
) -> ConfigDict:
    """The object in `text`; an empty one where nothing is written.

    A bare word is accepted, as text, only where `is_marker` accepts it.
    NaN and Infinity are read as Python's `json` writes them.

    Raises:
        ConfigError: text that is no JSON object.
    """
    reader = _Reader(text, file, budget, is_marker)
    if not text.strip(" \t\r\n"):
        return ConfigDict()
    try:
        value = reader.value(0)
    except TooMuch as error:
        reader.fail(str(error))
    reader.skip()
    if reader.at < len(text):
        reader.fail("text after the end of the object; remove it")
    if not isinstance(value, ConfigDict):
        reader.at = 0
        reader.fail(f"the top level must be an object, not {describe(value)}")
    return value


class _Reader:
    def __init__(
        self, text: str, file: str, budget: Budget, is_marker: Callable[[str], bool]
    ) -> None:
        self.text, self.file, self.is_marker = text, file, is_marker
        self.at = 0
        self._budget = budget
        self._decoder = json.JSONDecoder()
        self._line, self._counted = 1, 0

    def origin(self) -> Origin:
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return Origin(self.file, self._line)

    def fail(self, reason: str) -> NoReturn:
        raise config_error(reason, self.origin())

    def skip(self) -> str:
        """Go over white space; the character after it, or an empty string."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        char = self.skip()
        self._budget.charge(2, 100)
        if depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels; flatten it")
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._array(depth)
        if char == '"':
            return self._string()
        return self._scalar()

    def _string(self) -> str:
        try:
            text, self.at = self._decoder.raw_decode(self.text, self.at)
        except ValueError as error:
            self.fail(f"not a JSON string: {getattr(error, 'msg', error)}")
        return str(text)

    def _scalar(self) -> Any:
        word = _WORD.match(self.text, self.at)
        if word:
            if word[0] not in _NAMES and not self.is_marker(word[0]):
                self.fail(f"unknown word {describe(word[0])}; put text in quotes")
            self.at = word.end()
            return _NAMES.get(word[0], word[0])
        if self.text.startswith("-Infinity", self.at):
            self.at += len("-Infinity")
            return float("-inf")
        number = _NUMBER.match(self.text, self.at)
        if not number:
            found = self.text[self.at : self.at + 1]
            self.fail(
                f"expected a value, found {describe(found)}"
                if found
                else "the text ends before the value; close what is open"
            )
        try:
            value, end = self._decoder.raw_decode(number[0])
        except ValueError:
            value, end = None, -1
        if end != len(number[0]) or value in (float("inf"), float("-inf")):
            self.fail(f"{describe(number[0])} is not a number JSON can hold")
        self.at = number.end()
        return value

    def _object(self, depth: int) -> ConfigDict:
        self._budget.charge(4, 500)
        node = ConfigDict()
        node._meta_.origin = self.origin()
        self.at += 1
        if self.skip() == "}":
            self.at += 1
            return node
        while True:
            if self.skip() != '"':
                self.fail("expected a key in double quotes")
            origin = self.origin()
            key = self._string()
            if key in node:
                first = origin_of(node, key)
                raise config_error(f"given twice (first: {first})", origin, [key])
            if self.skip() != ":":
                self.fail(f"expected ':' after the key {describe(key)}")
            self.at += 1
            place(node, key, self.value(depth + 1), origin)
            if self._comma("}"):
                return node

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self.at += 1
        if self.skip() == "]":
            self.at += 1
            return items
        while True:
            items.append(self.value(depth + 1))
            if self._comma("]"):
                return items

    def _comma(self, close: str) -> bool:
        """Go over `,` (False) or `close` (True)."""
        char = self.skip()
        if char not in (",", close) or not char:
            self.fail(f"expected ',' or '{close}'")
        self.at += 1
        return char == close
