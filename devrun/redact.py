"""Secrets do not leave the process: logs, errors, records and sent parameters are
made of texts that went through `redact`.

Three things are hidden:

- what this run was given as secret: every value of an `${env:NAME}`, which reads
  `${env:NAME}` again, and every value of a config's secret keys;
- the value of a secret-looking key in the usual notations: `api_key='...'`,
  `--token ...`, `"password": "..."`, `?sig=...`, `Authorization: ...`;
- user information in URLs.

A key is judged by its words: `api_key`, `wandbToken` and `db.password` hold secrets;
`cls_token`, `num_tokens` and `tokenizer` are a model's own words.
"""

from __future__ import annotations

import functools
import itertools
import re
from urllib.parse import quote, quote_plus

MASK = "******"


class Reference:
    """A value read from outside, with the text that was written in its place."""

    template: str


# Keys -----------------------------------------------------------------------------

_ENDINGS = (
    "password", "passwords", "passphrase", "passwd", "pwd", "passcode", "secret",
    "secrets", "credential", "credentials", "apikey", "secretkey", "accesskey",
    "privatekey", "accountkey", "authkey", "apitoken", "authtoken", "accesstoken",
    "webhook", "cookie", "authorization", "sessionid", "jwt", "dbpass",
)  # fmt: skip
"""Also at the end of a word that is written together, such as PGPASSWORD."""
_KEY_AFTER = {
    "access", "account", "api", "app", "auth", "aws", "azure", "client", "comet",
    "encryption", "github", "gitlab", "google", "hf", "hub", "huggingface", "license",
    "master", "minio", "mlflow", "neptune", "openai", "private", "rsa", "s3", "secret",
    "server", "service", "session", "shared", "signing", "ssh", "storage", "wandb",
}  # fmt: skip
_TOKEN_AFTER = {
    "access", "api", "app", "auth", "aws", "bearer", "bot", "deploy", "github",
    "gitlab", "hf", "hub", "huggingface", "id", "oauth", "private", "push", "refresh",
    "secret", "security", "session", "user", "wandb",
}  # fmt: skip
_PASS_AFTER = {"db", "database", "email", "ftp", "mail", "proxy", "smtp", "ssh", "user"}
_ALONE = {"token", "pass", "auth", "bearer", "sig"}
_WORD = re.compile(r"[sS]3|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def is_secret_key(key: object) -> bool:
    return isinstance(key, str) and _names_secret(key)


@functools.lru_cache(maxsize=1024)  # each log record has the keys of the one before
def _names_secret(key: str) -> bool:
    words = [word.lower() for word in _WORD.findall(key[:256])]
    if any(word.endswith(_ENDINGS) for word in words):
        return True
    pairs = itertools.pairwise(words)
    if any(word in ("key", "keys") and before in _KEY_AFTER for before, word in pairs):
        return True
    *others, last = words or [""]
    if not others or ("." in key and key.rpartition(".")[2].lower() in _ALONE):
        return last in _ALONE
    before = others[-1]
    return (
        (last in ("token", "tokens") and before in _TOKEN_AFTER)
        or (last == "pass" and before in _PASS_AFTER)
        or (last == "signature" and before in ("amz", "goog"))
    )


# What the run was given -----------------------------------------------------------

_KEPT = 2000
_known: dict[str, str] = {}
"""A text that must not be shown -> what is shown instead; the oldest are forgotten."""
_PLAIN = {
    "auto", "cpu", "cuda", "data", "debug", "error", "false", "float", "info", "mean",
    "local", "loss", "main", "model", "none", "null", "test", "train", "true", "user",
    "valid", "warning",
}  # fmt: skip
_SHORTEST = 4
_WHOLE_WORD = 8


def remember(value: str, shown: str = MASK) -> None:
    """From now on `redact` shows `shown` in place of `value`.

    Texts under four characters, numbers under six digits and the words that every log
    is made of stay: hiding them everywhere would hide the log and no secret.
    """
    number = re.fullmatch(r"[-+]?[\d_.]{1,5}|[-+]?\d*\.?\d+([eE][-+]?\d+)?", value)
    short = number is not None and (len(value) < 6 or shown != MASK)
    if len(value) < _SHORTEST or short or value.lower() in _PLAIN or MASK in value:
        return
    for form in {value, repr(value)[1:-1], quote(value, safe=""), quote_plus(value)}:
        _known.pop(form, None)
        _known[form] = shown
    while len(_known) > _KEPT:
        del _known[next(iter(_known))]


def _without_known(text: str) -> str:
    there = [value for value in _known if value in text]
    if not there:
        return text
    # the longest first: one may be part of another
    parts = [
        re.escape(value)
        if len(value) >= _WHOLE_WORD
        else rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])"
        for value in sorted(there, key=len, reverse=True)
    ]
    return re.sub("|".join(parts), lambda found: _known[found[0]], text)


# Notations --------------------------------------------------------------------------

# what is before the last @ of the first part of a URL, but for the usual public names
_USER_INFO = re.compile(r"(?<=://)(?!(?:git|hg|svn|ssh)@)[^\s/?#\"'<>]{1,2048}@")
_HEADER = re.compile(
    r"((?i:\b(?:proxy-)?authorization|\b(?:set-)?cookie)['\"]?\s*[:=]\s*['\"]?"
    r"|(?i:\bbearer)\s+(?=\S*\d))[^\n\"']+"
)
_KEY = re.compile(r"(?<![\w.-])-{0,2}[A-Za-z_][\w.-]{1,80}")
_VALUE = re.compile(
    r"""(?P<between>\\?["']?\s?(?:=>|[:=])\s{0,40}|\s(?=[^\s-]))
        (?:(?P<quote>\\?["'])(?:\\.|[^\\]){0,4096}?(?:(?P=quote)|\Z)
          |\[[^\]]{0,4096}\]?|[^\s,;&"'<>)\]}]+)""",
    re.VERBOSE | re.DOTALL,
)
_PROSE = {
    "a", "an", "cannot", "expected", "got", "invalid", "is", "it", "missing", "must",
    "needs", "no", "not", "required", "takes", "text", "the", "unknown", "was",
}  # fmt: skip
"""How the message about a key goes on after its colon."""
_EMPTY = {"", "None", "null", "True", "False", "true", "false", "~", MASK}
_ENV = re.compile(r"\s*\$\{env(\.\w+)?:\w+:?\}?")


def redact(text: str) -> str:
    """`text` with its secrets as `******`, and values of `${env:NAME}` as that."""
    text = _without_known(text)
    if "://" in text:
        text = _USER_INFO.sub(f"{MASK}@", text)
    return _without_pairs(_HEADER.sub(rf"\1{MASK}", text))


def _without_pairs(text: str) -> str:
    """Without the values of secret keys, whatever the notation of the pair."""
    parts, start = [], 0
    for key in _KEY.finditer(text):
        if key.start() < start or not is_secret_key(key[0].lstrip("-")):
            continue
        found = _VALUE.match(text, key.end())
        if found is None:
            continue
        mark = found["quote"] or ""
        bare = found[0][len(found["between"]) :]
        inside = bare[len(mark) : -len(mark)] if mark else bare
        flag = key[0].startswith("--")
        if (
            (found["between"].isspace() and not flag)
            or inside in _EMPTY
            or _ENV.fullmatch(inside)
            or (":" in found["between"] and not mark and bare in _PROSE)
        ):
            continue
        parts += [text[start : found.end("between")], mark, MASK, mark]
        start = found.end()
    return "".join([*parts, text[start:]])
