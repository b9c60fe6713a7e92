"""A tree without its secrets: `devrun.redact` for every key and text of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from devrun.config.origin import describe
from devrun.redact import MASK, Reference, is_secret_key, redact, remember


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
