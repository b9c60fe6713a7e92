"""Secrets stay out of everything that is written: which keys hold one, and masking.

A key is judged by its words: `api_key`, `wandbToken` and `db.password` hold secrets;
`cls_token`, `num_tokens` and `tokenizer` are a model's own words.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

from devrun.config.environment import template_of
from devrun.config.origin import describe

__all__ = ["MASK", "is_secret_key", "redacted", "shown_value"]

MASK = "******"

_ALWAYS = {
    "password", "passwords", "passwd", "passphrase", "pwd", "secret", "secrets",
    "credential", "credentials", "apikey", "apikeys", "apitoken", "authtoken",
    "accesskey", "accesstoken", "secretkey", "privatekey", "webhook",
}  # fmt: skip
_KEY_AFTER = {
    "access", "account", "api", "app", "auth", "client", "encryption", "hmac",
    "license", "master", "private", "rsa", "service", "signing", "ssh", "storage",
    "subscription", "hub",
}  # fmt: skip
# A `*_token` is a secret unless a model or a tokenizer would say it.
_MODEL_TOKENS = {
    "add", "blank", "bos", "class", "cls", "dist", "distill", "distillation", "end",
    "eos", "extra", "first", "global", "image", "img", "last", "local", "mask", "max",
    "min", "n", "no", "num", "object", "pad", "padding", "patch", "per", "pool",
    "prompt", "query", "register", "sep", "separator", "sos", "special", "start",
    "text", "unk", "unknown", "use", "video", "visual", "with", "word",
}  # fmt: skip
_TOKENS_AFTER = {"access", "api", "auth", "bearer", "refresh", "user"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_USER_INFO = re.compile(r"(?<=://)[^/\s@:]{0,256}:[^/\s@]{1,256}(?=@)")


def is_secret_key(key: object) -> bool:
    if not isinstance(key, str):
        return False
    words = [word.lower() for word in _WORD.findall(key[:256])]
    if not words:
        return False
    if _ALWAYS.intersection(words):
        return True
    if any(
        word in ("key", "keys") and before in _KEY_AFTER
        for before, word in itertools.pairwise(words)
    ):
        return True
    if words[-1] == "token":
        return len(words) == 1 or words[-2] not in _MODEL_TOKENS
    if words[-1] == "tokens":
        return len(words) > 1 and words[-2] in _TOKENS_AFTER
    return words in (["auth"], ["authorization"], ["bearer"])


def redacted(value: Any, secret: bool = False) -> Any:
    """A plain copy fit to be shown: secrets masked, `${env:...}` as it was written."""
    if isinstance(value, dict):
        return {
            key: redacted(child, secret or is_secret_key(key))
            for key, child in value.items()
        }
    if isinstance(value, list):
        return [redacted(child, secret) for child in value]
    if type(value) is tuple:
        return tuple(redacted(child, secret) for child in value)
    template = template_of(value)
    if template is not None:
        value = template
        secret = secret and not _is_reference(template)
    if secret and not (value is None or isinstance(value, bool) or value == ""):
        return MASK
    if isinstance(value, str) and "://" in value:
        return _USER_INFO.sub(MASK, value)
    return value


def shown_value(value: Any, path: Iterable[Any]) -> str:
    """`describe(value)` for a message about the key at `path`."""
    return "a secret" if any(map(is_secret_key, path)) else describe(value)


def _is_reference(template: str) -> bool:
    """The whole text is one reference without a default, which could be a secret."""
    return bool(re.fullmatch(r"\$\{env(\.\w+)?:\w+(:)?\}", template))
