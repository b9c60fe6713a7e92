"""A tree without its secrets: `devrun.redact` for every key and text of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from devrun.config.origin import describe
from devrun.redact import MASK, Reference, is_name, is_secret_key, redact, remember

_NAMES = ("name", "key", "header", "variable")
_RANDOM = re.compile(r"(?=\S*[0-9])(?=\S*[A-Za-z])[\w+/=.-]{24,}")
"""A value that is one long random word; with a key `*_key` it is a secret."""


def redacted(value: Any, secret: bool = False) -> Any:
    """A plain copy fit to be shown: secrets masked, `${env:...}` as it was written."""
    if isinstance(value, dict):
        named = _names_secret(value)
        return {
            key: redacted(
                child, secret or _is_secret(key, child) or (named and key == "value")
            )
            for key, child in value.items()
        }
    if isinstance(value, list) or type(value) is tuple:
        kind = tuple if type(value) is tuple else list
        if _is_pair(value):
            return kind([value[0], redacted(value[1], True)])
        return kind(redacted(child, secret) for child in value)
    if isinstance(value, Reference):
        value = value.template
        secret = secret and not _is_reference(value)
    if secret and not (value is None or isinstance(value, bool) or value == ""):
        return MASK
    return _text(value)


def remember_secrets(value: Any, secret: bool = False) -> None:
    """Let `devrun.redact` know the texts that `redacted` would mask in a tree."""
    if isinstance(value, dict):
        named = _names_secret(value)
        for key, child in value.items():
            hidden = secret or _is_secret(key, child) or (named and key == "value")
            remember_secrets(child, hidden)
    elif isinstance(value, (list, tuple)):
        for child in value[1:] if _is_pair(value) else value:
            remember_secrets(child, secret or _is_pair(value))
    elif secret and isinstance(value, (str, int)) and not isinstance(value, Reference):
        if not isinstance(value, bool):
            remember(str(value))


def shown_value(value: Any, path: Iterable[Any]) -> str:
    """`describe(value)` for a message about the key at `path`."""
    return "a secret" if any(map(is_secret_key, path)) else describe(value)


def _text(value: Any) -> Any:
    return redact(value) if type(value) is str else value


def _is_secret(key: Any, value: Any) -> bool:
    if is_secret_key(key):
        return not (isinstance(value, str) and is_name(key, value))
    ends = isinstance(key, str) and key.lower().endswith(("key", "_id_token"))
    return ends and isinstance(value, str) and bool(_RANDOM.fullmatch(value))


def _names_secret(tree: dict[Any, Any]) -> bool:
    """`{name: WANDB_API_KEY, value: ...}`, as clusters write their variables."""
    return "value" in tree and any(is_secret_key(tree.get(name)) for name in _NAMES)


def _is_pair(value: Any) -> bool:
    """`["X-Api-Key", "..."]`, as requests take their headers."""
    texts = len(value) == 2 and all(isinstance(item, str) for item in value)
    return texts and is_secret_key(value[0]) and not is_name(*value)


def _is_reference(template: str) -> bool:
    """The whole text is one reference without a default, which could be a secret."""
    return bool(re.fullmatch(r"\$\{env(\.\w+)?:\w+(:)?\}", template))
