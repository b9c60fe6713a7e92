"""What reading one configuration may cost, and the copy that enforces it.

One `Budget` of steps serves a configuration with every file it is based on: each reader
pays by the size of what goes in and of what comes out, so that time and memory are
bounded. A few lines of aliases or of `x = [x, x]` describe a tree of any size: every
file's result is copied into a tree of its own, counted and checked on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap
from typing import Any, TypeVar

from devrun.config.origin import config_error, describe
from devrun.config.tree import ConfigDict, ConfigList, origin_of, place
from devrun.errors import ConfigError
from devrun.place import KeyPath, Origin

MAX_DEPTH = 50
MAX_NODES = 100_000
MAX_BITS = 4096
MAX_STEPS = 300_000
"""A few microseconds and some hundred bytes each: seconds and 100 MiB in all."""

_SCALARS = (str, int, float, type(None))
_CONTAINERS = (list, tuple, range, dict)
EACH = 32
"""Characters that a value of any kind counts as."""
_LARGEST = EACH * MAX_NODES

T = TypeVar("T")


class TooMuch(ConfigError):  # noqa: N818 - reads as the message does
    """The configuration asks for more than it may."""


class Budget:
    """The steps that are left to one configuration."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._steps = steps

    def charge(self, steps: int = 1) -> None:
        """Pay in advance.

        Raises:
            TooMuch: there are not that many left.
        """
        self._steps -= steps
        if self._steps < 0:
            raise TooMuch("more work than a configuration may take; write it out")

    def room(self, chars: int) -> None:
        """Pay for a text of so many characters, or a container of that size."""
        if chars > _LARGEST:
            raise TooMuch("the result would be too large")
        self.charge(1 + (chars >> 6))

    def look(self, *values: Any) -> None:
        """Pay for going through all of `values`, to compare, show or hash them."""
        for value in values:
            self.charge(weigh(value) >> 6)

    def search(self, holder: Any, *wanted: Any) -> None:
        """Pay for comparing each part of `holder` with all of `wanted`.

        A method of text makes no more than that many characters either.
        """
        size = (len(holder) + 1) * (1 + sum(weigh(one) - EACH for one in wanted))
        self.room(size) if isinstance(holder, str) else self.charge(size >> 9)

    def made(self, value: T) -> T:
        """Pay for the result of an operation, and hand it on."""
        if isinstance(value, (str, *_CONTAINERS)):
            self.room(len(value) if isinstance(value, str) else EACH * len(value))
        elif isinstance(value, complex):
            raise TooMuch("the result is a complex number")
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TooMuch("the result is too large a number")
        return value


def weigh(value: Any) -> int:
    """How large `value` is, with all that it holds: characters, and 32 a value.

    A value used in several places counts in each, as printing shows it.

    Raises:
        TooMuch: more than an operation may go through, or nested too deeply.
    """
    size, level = 0, [value]
    for _ in range(2 * MAX_DEPTH):
        size += EACH * len(level)
        below: list[Any] = []
        for item in level:
            if isinstance(item, (str, range)):
                size += len(item)
            elif isinstance(item, int):
                size += item.bit_length() >> 2
            elif isinstance(item, _CONTAINERS):
                size += EACH * len(item)
                below.extend(item)
                if isinstance(item, dict):
                    below.extend(item.values())
            if size > _LARGEST:
                raise TooMuch("a value too large to go through")
        if not below:
            return size
        level = below
    raise TooMuch("nested too deeply; write it in steps")


def copied(
    value: Any,
    budget: Budget,
    origin: Origin | None = None,
    path: KeyPath = (),
    *,
    any_leaf: bool = False,
    fill: Callable[[str], Any] = lambda text: text,
) -> Any:
    """A copy of a tree in nodes of our own, within the limits.

    `any_leaf` accepts objects other than text, numbers and None, for a file
    that was run as Python code; `fill` replaces what stands in texts and keys.

    Raises:
        ConfigError: nested too deeply, or a value that is not for a configuration.
    """
    check_depth(origin, path)
    budget.charge(10 if isinstance(value, (dict, list)) else 1)

    def inner(key: Any, child: Any, line: Origin | None = origin) -> Any:
        here = (*path, key)
        return copied(child, budget, line, here, any_leaf=any_leaf, fill=fill)

    if isinstance(value, dict):
        result = ConfigDict()
        result._meta_.origin = origin_of(value) or origin
        for key, child in value.items():
            line = origin_of(value, key) or result._meta_.origin
            _check_leaf(key, line, (*path, key), any_leaf)
            name = fill(key) if isinstance(key, str) else key
            if isinstance(name, (dict, list)) or name in result:
                reason = f"the key {describe(name)} cannot stand here"
                raise config_error(reason, line)
            place(result, name, inner(name, child, line), line)
        return result
    if isinstance(value, (list, range)):
        items = ConfigList(starmap(inner, enumerate(value)))
        items._meta_.origin = origin
        return items
    if type(value) is tuple:
        return tuple(starmap(inner, enumerate(value)))
    if isinstance(value, str):
        budget.charge(len(value) >> 6)
    _check_leaf(value, origin, path, any_leaf)
    return fill(value) if isinstance(value, str) else value


def check_depth(origin: Origin | None, path: KeyPath) -> None:
    if len(path) > MAX_DEPTH:
        reason = f"nested deeper than {MAX_DEPTH} levels; flatten it"
        raise config_error(reason, origin, path[:4])


def _check_leaf(
    value: Any, origin: Origin | None, path: KeyPath, any_leaf: bool
) -> None:
    reason = ""
    if isinstance(value, str):
        if "\0" in value:
            reason = "text with a NUL character; remove it"
        elif not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            reason = "text with half a character (a lone surrogate); correct it"
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        reason = f"{describe(value)}; at most {MAX_BITS} bits are taken"
    elif isinstance(value, tuple):
        for item in value:
            _check_leaf(item, origin, path, any_leaf)
    elif not any_leaf and not isinstance(value, _SCALARS):
        reason = (
            f"{describe(value)} is no configuration value; use text, a number, "
            "true, false, None, a list or a dict"
        )
    if reason:
        raise config_error(reason, origin, path[:8])
