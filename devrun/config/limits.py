"""What reading one configuration may cost, and the copy that enforces it.

One `Budget` of steps serves a configuration with every file it is based on: each reader
pays by the size of what goes in and of what comes out, so that time and memory are
bounded. A few lines of aliases or of `x = [x, x]` describe a tree of any size: every
file's result is copied into a tree of its own, counted and checked on the way.
"""

from __future__ import annotations

from typing import Any, TypeVar

from devrun.config.origin import config_error, describe
from devrun.config.tree import ConfigDict, ConfigList, children, origin_of
from devrun.place import KeyPath, Origin

MAX_DEPTH = 50
MAX_NODES = 100_000
MAX_STRING = 1 << 20
MAX_BITS = 4096
MAX_STEPS = 300_000
"""A few microseconds and some hundred bytes each: seconds and 100 MiB in all."""

_SCALARS = (str, int, float, type(None))
_CONTAINERS = (list, tuple, set, frozenset, range, dict)

T = TypeVar("T")


class TooMuch(ValueError):  # noqa: N818 - reads as the message does
    """The configuration asks for more than it may; the message has no place yet."""


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

    def text(self, chars: int) -> None:
        """Pay for a text of so many characters."""
        if chars > MAX_STRING:
            raise TooMuch("the result would be too large")
        self.charge(chars >> 6)

    def rows(self, count: int) -> None:
        """Pay for a container of so many values."""
        if count > MAX_NODES:
            raise TooMuch("the result would be too large")
        self.charge(1 + (count >> 1))

    def look(self, *values: Any) -> None:
        """Pay for going through all of `values`, to compare, show or hash them."""
        for value in values:
            nodes, chars = weigh(value)
            self.charge((nodes >> 1) + (chars >> 6))

    def made(self, value: T) -> T:
        """Pay for the result of an operation, and hand it on."""
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, _CONTAINERS):
            self.rows(len(value))
        elif isinstance(value, complex):
            raise TooMuch("the result is a complex number")
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TooMuch("the result is too large a number")
        return value


def weigh(value: Any) -> tuple[int, int]:
    """How many values `value` is and holds, and the characters of all its text.

    A value used in several places counts in each, as printing shows it.

    Raises:
        TooMuch: more of them than an operation may go through, or nested too deeply.
    """
    nodes, chars, level = 1, 0, [value]
    for _ in range(2 * MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                chars += len(item)
            elif isinstance(item, _CONTAINERS):
                nodes += len(item)
                if nodes > MAX_NODES:
                    raise TooMuch("a value too large to go through")
                if isinstance(item, dict):
                    below.extend(item.values())
                if not isinstance(item, range):
                    below.extend(item)
            elif isinstance(item, int):
                chars += item.bit_length() >> 2
        if chars > MAX_STRING:
            raise TooMuch("a value too large to go through")
        if not below:
            return nodes, chars
        level = below
    raise TooMuch("nested too deeply; write it in steps")


class Copier:
    """Copies trees into nodes of our own within the limits.

    `any_leaf` accepts objects other than text, numbers and None, for a file
    that was run as Python code.
    """

    def __init__(self, budget: Budget, *, any_leaf: bool = False) -> None:
        self.budget = budget
        self.any_leaf = any_leaf
        self._chars = 0

    def copy(self, value: Any, origin: Origin | None, path: KeyPath = ()) -> Any:
        self._count(value, origin, path)
        if isinstance(value, dict):
            return self._copy_dict(value, origin, path)
        if isinstance(value, (list, range)):
            items = [self.copy(v, origin, (*path, i)) for i, v in enumerate(value)]
            result = ConfigList(items)
            result._meta_.origin = origin
            return result
        if type(value) is tuple:
            return tuple(self.copy(v, origin, (*path, i)) for i, v in enumerate(value))
        if type(value) is set:
            return {self.copy(item, origin, path) for item in value}
        self._check_leaf(value, origin, path)
        return value

    def visit(
        self, value: Any, origin: Origin | None = None, path: KeyPath = ()
    ) -> None:
        """Check a merged tree, which grew from parts that were checked before."""
        self._count(None, origin, path)
        for key, child in children(value):
            self.visit(child, origin_of(value, key) or origin, (*path, key))

    def _count(self, value: Any, origin: Origin | None, path: KeyPath) -> None:
        if len(path) > MAX_DEPTH:
            reason = f"nested deeper than {MAX_DEPTH} levels; flatten it"
            raise config_error(reason, origin, path[:4])
        try:
            size = len(value) if isinstance(value, _CONTAINERS) else 0
            self.budget.charge(10 + size if isinstance(value, dict) else 1 + size)
        except TooMuch:
            reason = "too many values; a configuration names data, it does not hold it"
            raise config_error(reason, origin, path[:4]) from None

    def _copy_dict(
        self, value: dict[Any, Any], origin: Origin | None, path: KeyPath
    ) -> ConfigDict:
        result = ConfigDict()
        meta = value._meta_ if isinstance(value, ConfigDict) else None
        result._meta_.origin = (meta.origin if meta else None) or origin
        for key, child in value.items():
            line = (meta.origins.get(key) if meta else None) or result._meta_.origin
            self._check_leaf(key, line, (*path, key))
            dict.__setitem__(result, key, self.copy(child, line, (*path, key)))
            if line is not None:
                result._meta_.origins[key] = line
        return result

    def _check_leaf(self, value: Any, origin: Origin | None, path: KeyPath) -> None:
        reason = ""
        if isinstance(value, str):
            self._chars += len(value)
            if self._chars > 4 * MAX_STRING:
                reason = "more text than a configuration may hold"
            elif "\0" in value:
                reason = "text with a NUL character; remove it"
            elif not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
                reason = "text with half a character (a lone surrogate); correct it"
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            reason = f"{describe(value)}; at most {MAX_BITS} bits are taken"
        elif isinstance(value, tuple):
            for item in value:
                self._check_leaf(item, origin, path)
        elif not self.any_leaf and not isinstance(value, _SCALARS):
            reason = (
                f"{describe(value)} is no configuration value; use text, a number, "
                "true, false, None, a list or a dict"
            )
        if reason:
            raise config_error(reason, origin, path[:8])
