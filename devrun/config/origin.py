"""How a message about a value of a config reads, and a tree without its secrets.

Every message of this package is one printable line:
`file:line: a.b.c: reason; what to do`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

from devrun.errors import ConfigError, nearest
from devrun.place import Origin, Place
from devrun.python38 import unprefixed
from devrun.redact import MASK, Reference, is_secret_key, redact, remember
from devrun.text import escape


def describe(value: object) -> str:
    """A value as a message shows it: short, and never the inside of a container."""
    if isinstance(value, dict):
        return f"a dict of {len(value)} keys"
    if isinstance(value, (list, tuple, set, frozenset)):
        return f"a {unprefixed(type(value).__name__, 'Config').lower()} of " + (
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


def redacted(value: Any, secret: bool = False) -> Any:
    """A plain copy fit to be shown: secrets masked, `${env:...}` as it was written."""
    if isinstance(value, dict):
        return {
            key: redacted(child, secret or is_secret_key(key))
            for key, child in value.items()
        }
    if isinstance(value, list) or type(value) is tuple:
        kind = tuple if type(value) is tuple else list
        return kind(redacted(child, secret) for child in value)
    if isinstance(value, Reference):
        value = value.template
        # without a default, which could be a secret
        secret = secret and not re.fullmatch(r"\$\{env(\.\w+)?:\w+:?\}", value)
    if secret and not (value is None or isinstance(value, bool) or value == ""):
        return MASK
    return redact(value) if type(value) is str else value


def remember_secrets(value: Any, secret: bool = False) -> None:
    """Let `devrun.redact` know the texts that `redacted` would mask in a tree."""
    if isinstance(value, dict):
        for key, child in value.items():
            remember_secrets(child, secret or is_secret_key(key))
    elif isinstance(value, (list, tuple)):
        for child in value:
            remember_secrets(child, secret)
    elif (
        secret
        and isinstance(value, (str, int))
        and not isinstance(value, (bool, Reference))
    ):
        remember(str(value))


def shown_value(value: Any, path: Iterable[Any]) -> str:
    """`describe(value)` for a message about the key at `path`."""
    return "a secret" if any(map(is_secret_key, path)) else describe(value)
