"""What Python 3.9 lacks and the tests use."""

from collections.abc import Iterable, Iterator
from typing import Any


def zip_strict(*columns: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """`zip(strict=True)` of Python 3.10, of columns that have an end."""
    rows = [list(column) for column in columns]
    lengths = sorted(map(len, rows))
    assert lengths[0] == lengths[-1], lengths
    return zip(*rows)
