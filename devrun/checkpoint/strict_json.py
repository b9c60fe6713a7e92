"""JSON that means one thing only: no duplicate keys, no NaN, nothing too deep."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def loads(data: bytes) -> Any:
    """The value of `data`, UTF-8 text.

    Raises:
        ValueError: not JSON, a key given twice, a number that is no number, or
            deeper than the interpreter can go.
    """
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dumps(value: Any) -> bytes:
    """One line, keys in the order they have."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def render(value: Any) -> bytes:
    """For people: indented, keys sorted."""
    return json.dumps(value, allow_nan=False, sort_keys=True, indent=1).encode() + b"\n"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key!r} is given twice")
            seen.add(key)
    return result


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large for a float")
    return number
