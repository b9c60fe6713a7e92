"""What one configuration may hold, and the copy that enforces it.

A few lines of aliases or of `x = [x, x]` describe a tree of any size: every file's
result is copied into a tree of its own, counted and checked on the way.
"""

from __future__ import annotations

from typing import Any

from devrun.config.origin import KeyPath, Origin, config_error, describe
from devrun.config.tree import ConfigDict, ConfigList, children, origin_of

__all__ = ["MAX_DEPTH", "MAX_NODES", "MAX_STRING", "Copier", "measure"]

MAX_DEPTH = 50
MAX_NODES = 100_000
MAX_STRING = 1 << 20
MAX_BITS = 4096

_SCALARS = (str, int, float, type(None))


def measure(value: Any, limit: int = MAX_STRING) -> int:
    """About how many characters `value` would print as; stops counting at `limit`."""
    total, stack = 0, [value]
    while stack and total <= limit:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item) + 2
        elif isinstance(item, dict):
            total += 4 * len(item) + 2
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            total += 2 * len(item) + 2
            stack.extend(item)
        elif isinstance(item, int):
            total += item.bit_length() // 3 + 5
        else:
            total += 24
    return total


class Copier:
    """Copies trees into nodes of our own within the limits.

    `any_leaf` lets other objects than text, numbers and None through, for a file
    that was run as Python code.
    """

    def __init__(self, *, any_leaf: bool = False) -> None:
        self.any_leaf = any_leaf
        self._nodes = 0
        self._chars = 0

    def copy(self, value: Any, origin: Origin | None, path: KeyPath = ()) -> Any:
        self._count(origin, path)
        if isinstance(value, dict):
            return self._copy_dict(value, origin, path)
        if isinstance(value, (list, range)):
            items = [self.copy(v, origin, (*path, i)) for i, v in enumerate(value)]
            result = ConfigList(items)
            result._meta_.origin = origin
            return result
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self.copy(v, origin, (*path, i)) for i, v in enumerate(value))
        if type(value) is set:
            return {self.copy(item, origin, path) for item in value}
        self._check_leaf(value, origin, path)
        return value

    def visit(
        self, value: Any, origin: Origin | None = None, path: KeyPath = ()
    ) -> None:
        """Check a merged tree, which grew from parts that were checked before."""
        self._count(origin, path)
        for key, child in children(value):
            self.visit(child, origin_of(value, key) or origin, (*path, key))

    def _count(self, origin: Origin | None, path: KeyPath) -> None:
        self._nodes += 1
        if self._nodes > 2 * MAX_NODES:
            raise config_error(
                f"more than {2 * MAX_NODES} values in all; a configuration names data, "
                "it does not hold it",
                origin,
                path[:4],
            )
        if len(path) > MAX_DEPTH:
            reason = f"nested deeper than {MAX_DEPTH} levels; flatten it"
            raise config_error(reason, origin, path[:4])

    def _copy_dict(
        self, value: dict[Any, Any], origin: Origin | None, path: KeyPath
    ) -> ConfigDict:
        result = ConfigDict()
        meta = value._meta_ if isinstance(value, ConfigDict) else None
        result._meta_.origin = (meta.origin if meta else None) or origin
        for key, child in value.items():
            line = (meta.origins.get(key) if meta else None) or result._meta_.origin
            self._check_leaf(key, line, (*path, key))
            copied = self.copy(child, line, (*path, key))
            dict.__setitem__(result, key, copied)
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
            elif not value.isascii() and _has_surrogate(value):
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


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
