"""How a message about a value of a config reads.

Every message of this package is one printable line:
`file:line: a.b.c: reason; what to do`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from devrun.errors import ConfigError, nearest
from devrun.place import Origin, Place
from devrun.redact import Reference, redact
from devrun.text import escape


def describe(value: object) -> str:
    """A value as a message shows it: short, and never the inside of a container."""
    if isinstance(value, dict):
        return f"a dict of {len(value)} keys"
    if isinstance(value, (list, tuple, set, frozenset)):
        return f"a {type(value).__name__.removeprefix('Config').lower()} of " + (
            f"{len(value)} items"
        )
    if isinstance(value, Reference):
        return repr(value.template)  # never what the environment holds
    if isinstance(value, str):
        return escape(repr(redact(value[:1000])[:100]), 60)
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, (int, float)):
        return repr(value)
    return f"a {type(value).__name__}"


def config_error(
    reason: str,
    origin: Origin | None = None,
    path: Iterable[Any] = (),
    kind: type[ConfigError] = ConfigError,
) -> ConfigError:
    return kind(escape(reason, 600), place=Place(origin, tuple(path)))


def hint_for(name: object, known: Iterable[Any]) -> str:
    """`errors.nearest` over the first thousand of `known`, whatever their type."""
    names = (str(item)[:80] for item in itertools.islice(known, 1000))
    return escape(nearest(str(name)[:80], names), 400)
