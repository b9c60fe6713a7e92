"""Numbers that a computation can use: finite, and no larger than a float can be."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from devrun.config.origin import describe
from devrun.config.tree import children, where
from devrun.errors import ConfigError
from devrun.place import KeyPath, Place

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

MOST_WORKERS = 256
"""Worker processes of one loader: more take the machine's memory, not its time."""
MOST_THREADS = 4096
_DURATION = re.compile("".join(rf"(?:(\d{{1,6}}){unit})?" for unit in "dhms"))
_SECONDS = (86400, 3600, 60, 1)


def is_seed(value: Any) -> bool:
    """Whether every random stream takes `value`, and a little more by rank, as seed."""
    return is_number(value) and isinstance(value, int) and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """Whether `value` is an int or a float, which a bool is not here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_limit(value: Any) -> bool:
    """Whether `value` is a number of things from 1 on, or a fraction of them."""
    if isinstance(value, float):
        return 0 < value < 1
    return is_number(value) and 1 <= value < 2**63


def parsed_duration(value: Any) -> float | None:
    """Seconds, of a number above 0 or of text such as `1h30m`; None if it is none."""
    if is_number(value):
        return float(value) if 0 < value < math.inf else None
    found = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if found is None:
        return None
    return sum(float(part) * size for part, size in zip(found.groups("0"), _SECONDS))


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether `value` is a number that as a float is neither nan nor infinite."""
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:  # an int beyond the largest float
        return False


def whole_number(name: str, value: Any, least: int = 1, key: str | None = None) -> int:
    """`value` if it is an int of `least` or more; its error is of `key`, or `name`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{name} must be an int of {least} or more, got {value!r}", key=key or name
        )
    return value


def check_finite(
    node: Any,
    path: KeyPath = (),
    *,
    but: tuple[str, ...] = (),
    infinite: bool = False,
) -> None:
    """Refuse numbers in the dicts and lists of `node` that are not finite.

    Args:
        path: what leads to `node`, for one that does not know its place in a file.
        but: keys at any depth that are not looked at.
        infinite: let the two infinities pass.

    Raises:
        ConfigError: names the place of the first one.
    """
    for key, value in children(node):
        if key in but:
            continue
        below = (*path, key)
        if is_number(value) and not is_finite(value):
            if infinite and isinstance(value, float) and math.isinf(value):
                continue
            place = where(node, key) or Place(path=below)
            raise ConfigError(
                f"takes a finite number, not {describe(value)}", place=place
            )
        check_finite(value, below, but=but, infinite=infinite)
