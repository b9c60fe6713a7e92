"""`--cfg-options key=value list+=value`: words of the command line as values."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from typing import Any, NoReturn

from devrun.config.limits import Budget
from devrun.config.loader import APPEND
from devrun.config.origin import describe
from devrun.config.tree import plain
from devrun.config.yaml_reader import read_yaml, scalar


class DictAction(argparse.Action):
    """Collects `key=value` words in a dict, as MMCV's action of that name.

    Use with `nargs="+"`; given several times, the words add up. `key+=value` appends to
    a list: the value, or each of its items where it is a list itself. A word without
    `=` or with an empty key is a usage error.
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
            key, value = key.strip(), parse_value(text)
            if key.endswith("+"):
                key = key[:-1].rstrip()
                value = self._appended(options.get(key, {APPEND: []}), value)
            options[key] = value
        setattr(namespace, self.dest, options)

    def _appended(self, before: Any, value: Any) -> Any:
        """A list with more items, or what appends them to that of the config."""
        more = value if isinstance(value, list) else [value]
        if isinstance(before, list):
            return [*before, *more]
        if not (isinstance(before, dict) and before.keys() == {APPEND}):
            self._fail(f"+= appends to a list, not to {describe(before)}")
        return {APPEND: [*before[APPEND], *more]}

    def _fail(self, reason: str) -> NoReturn:
        raise argparse.ArgumentError(self, reason)


def parse_value(text: str) -> Any:
    """The value that `text` spells: in Python, else in YAML, else the text itself.

    Several with commas between them are a list.
    """
    text = text.strip()
    if not text:
        return text
    try:
        values = ast.literal_eval(f"[{text}]")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        values = _in_yaml(text)
    return values if text.endswith(",") or len(values) > 1 else values[0]


def _in_yaml(text: str) -> list[Any]:
    """The values in `text`, some of whose words have no quotes."""
    try:
        if text[0] in "[{" or ("," in text and "(" not in text):
            values: list[Any] = plain(read_yaml(f"v: [{text}]", "", Budget())["v"])
            return values
        return [scalar(text)]
    except ValueError:
        return [text]
