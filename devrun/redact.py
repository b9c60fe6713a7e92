"""Secrets do not leave the process: logs, errors, records and sent parameters are
made of texts that went through `redact`.

Three things are hidden: what this run was given as secret (the values of `${env:NAME}`
and of a config's secret keys), the value of a secret-looking key where it is written
as a pair (`api_key=...`, `"password": "..."`, `Authorization: ...`), and user
information in URLs.
"""

from __future__ import annotations

import functools
import re
from urllib.parse import quote, quote_plus

MASK = "******"


class Reference:
    """A value read from outside, with the text that was written in its place."""

    template: str


_SECRET_KEY = re.compile(
    r"""passw(or)?ds?$|passphrase|passcode|pwd$|secrets?($|[_-])|secretkey|credentials?$
    |api[_-]?(key|token)s?|(access|account|auth|private|secret)[_-]?(key|token)s?
    |webhook|cookie$|authorization|session[_-]?id|jwt$
    |(^|[.])(token|pass|auth|bearer|sig)$|(amz|goog)-signature$
    |(^|[._-])(database|db|email|ftp|mail|proxy|smtp|ssh|user)[_-]?pass$
    |(app|hf|hub|huggingface|github|gitlab|wandb|bot|bearer|deploy|oauth|push|refresh
      |security|session|user)[_-]?tokens?$|(^|[._-])id[_-]?tokens?$
    |(^|[._-])(app|aws|azure|client|comet|encryption|github|gitlab|google|hf|hub
      |huggingface|license|master|minio|mlflow|neptune|openai|rsa|s3|server|service
      |session|shared|signing|ssh|storage|wandb)[_-]?keys?$""",
    re.VERBOSE | re.IGNORECASE,
)


@functools.lru_cache(maxsize=1024)  # each log record has the keys of the one before
def is_secret_key(key: object) -> bool:
    """Whether the name says that its value is secret: `api_key`, `wandbToken`, not
    `cls_token`, `num_tokens` or `tokenizer`, which are a model's own words."""
    return isinstance(key, str) and bool(_SECRET_KEY.search(key[:256]))


# What the run was given -----------------------------------------------------------

_KEPT = 2000
_known: dict[str, str] = {}
"""A text that must not be shown -> what is shown instead; the oldest are forgotten."""
_COMMON = re.compile(r".{0,3}|[A-Za-z][a-z]{3,6}|[-+]?[\d_.]{1,5}", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d*\.?\d+([eE][-+]?\d+)?")
_WHOLE_WORD = 8


def remember(value: str, shown: str = MASK) -> None:
    """From now on `redact` shows `shown` in place of `value`.

    Texts under four characters, short plain words and short numbers stay:
    hiding them everywhere would hide the log and no secret.
    """
    if _COMMON.fullmatch(value) or MASK in value:
        return
    if shown != MASK and _NUMBER.fullmatch(value):
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
_KEY = re.compile(r"(?<![\w.])[A-Za-z_][\w.-]{1,80}")
_VALUE = re.compile(
    r"""(?:\\?["'])?\s?(?:=>?|:(?=\s{0,40}\\?["']))\s{0,40}
        (?:(?P<quote>\\?["'])(?P<quoted>(?:\\.|[^\\]){0,4096}?)(?:(?P=quote)|\Z)
          |(?P<bare>\[[^\]]{0,4096}\]?|[^\s,;&"'<>)\]}]+))""",
    re.VERBOSE | re.DOTALL,
)
_EMPTY = re.compile(
    rf"None|null|[Tt]rue|[Ff]alse|~|{re.escape(MASK)}|\$\{{env.*|", re.DOTALL
)


def redact(text: str) -> str:
    """`text` with its secrets as `******`, and values of `${env:NAME}` as that."""
    text = _without_known(text)
    if "://" in text:
        text = _USER_INFO.sub(f"{MASK}@", text)
    text, parts, start = _HEADER.sub(rf"\1{MASK}", text), [], 0
    for key in _KEY.finditer(text):
        if key.start() < start or not is_secret_key(key[0]):
            continue
        found = _VALUE.match(text, key.end())
        value = "quoted" if found and found["quote"] else "bare"
        if found and not _EMPTY.fullmatch(found[value]):
            parts += [text[start : found.start(value)], MASK]
            start = found.end(value)
    return "".join([*parts, text[start:]])
