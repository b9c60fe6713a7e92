"""Secrets stay out of everything that leaves the process.

`redact` is the one redactor of text, used by whatever prints, logs or saves. It hides

- what the run was given as a secret (`remember`): every value of an `${env:NAME}`,
  which reads `${env:NAME}` again, and every value of a config's secret keys;
- the value of a secret key in any notation, `api_key='...'`, `--token ...`,
  `Password=...;`, `"Cookie": "..."`, `?sig=...`, and user information in URLs;
- what is a secret by its form: keys and tokens of the usual services. The forms are
  those that the services publish and gitleaks and detect-secrets collect.

A key is judged by its words: `api_key`, `wandbToken` and `db.password` hold secrets;
`cls_token`, `num_tokens` and `tokenizer` are a model's own words; a value that is a
name, such as `pos_embed`, is no token of a service.
"""

from __future__ import annotations

import base64
import functools
import itertools
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

MASK = "******"


class Reference:
    """A value read from outside, with the text that was written in its place."""

    template: str


# Keys -----------------------------------------------------------------------------

_ALWAYS = {
    "passwd", "pwd", "secret", "secrets", "credential", "credentials", "apitoken",
    "authtoken", "accesstoken", "webhook", "cookie", "cookies", "authorization",
    "sessionid", "passcode", "jwt", "sessionkey", "connectionstring",
}  # fmt: skip
_ENDINGS = (
    "password", "passwords", "passphrase", "passwd", "apikey", "apikeys", "secretkey",
    "accesskey", "privatekey", "accountkey", "authkey", "secret", "accesskeyid",
    "requirepass", "dbpass", "userpass", "sshpass", "rootpass",
)  # fmt: skip
"""Also at the end of a word that is written together, such as PGPASSWORD."""
_KEY_AFTER = {
    "access", "account", "admin", "algolia", "anthropic", "api", "app", "auth", "aws",
    "azure", "bucket", "clearml", "client", "cloud", "cohere", "comet", "consumer",
    "datadog", "dd", "deploy", "encryption", "firebase", "gcp", "gcs", "gemini",
    "github", "gitlab", "google", "groq", "hf", "hmac", "hub", "huggingface", "jwt",
    "kaggle", "license", "mailgun", "maps", "master", "minio", "mistral", "mlflow",
    "neptune",
    "ngc", "nvidia", "openai", "openrouter", "oss", "personal", "pinecone", "private",
    "replicate", "root", "rsa", "s3", "sas", "secret", "sendgrid", "sentry", "server",
    "service", "session", "shared", "signing", "slack", "ssh", "sso", "storage",
    "stripe", "subscription", "swift", "telegram", "together", "twilio", "user",
    "vault", "wandb", "wasabi", "webhook",
}  # fmt: skip
_PASS_AFTER = {
    "account", "admin", "auth", "basic", "client", "database", "db", "docker",
    "email", "ftp",
    "git", "http", "key", "keystore", "ldap", "login", "mail", "mongo", "mqtt", "my",
    "mysql", "pg", "postgres", "proxy", "redis", "require", "root", "s3", "server",
    "smtp", "sql", "ssh", "store", "sudo", "user", "vpn", "wifi",
}  # fmt: skip
# A `*_token` is a secret unless a model or a tokenizer would say it.
_MODEL_TOKENS = {
    "add", "attn", "audio", "begin", "blank", "bos", "class", "cls", "context",
    "cross", "decoder", "dist", "distill", "distillation", "distilled", "drop",
    "dummy", "empty", "end", "eod", "eos", "eot", "extra", "fake", "feat",
    "feature", "first", "frame", "global", "image", "img", "in", "input", "iou",
    "keep", "lang", "language", "last", "latent", "learnable", "local", "mask",
    "max", "mem", "memory", "min", "motion", "n", "next", "no", "null", "num",
    "obj", "object", "out", "output", "pad", "padding", "patch", "per", "point",
    "pool", "pos", "position", "prefix", "prev", "prompt", "query", "readout",
    "reg", "region", "register", "row", "sentence", "sep", "separator", "sink",
    "sos", "source", "special", "speech", "src", "start", "state", "stop", "suffix",
    "summary", "target", "task", "text", "tgt", "think", "time", "unk", "unknown",
    "use", "video", "vis", "vision", "visual", "with", "word",
}  # fmt: skip
_TOKENS_AFTER = {"access", "api", "auth", "bearer", "refresh", "user"}
_SIGNATURE_AFTER = {"amz", "goog", "oss", "url", "request", "access", "webhook"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAME = re.compile(r"[a-z]{1,16}\d{0,2}([._]([a-z]{1,16}\d{0,2}|\d{1,3}))+")


def is_secret_key(key: object) -> bool:
    return isinstance(key, str) and _names_secret(key)


def is_name(key: str, value: str) -> bool:
    """Whether the `value` of the secret `key` is a name, of a parameter for example.

    Services draw tokens at random, so `["dino_token", "pos_embed"]` is a list of names.
    People choose passwords, which may be words.
    """
    named = key.lower().endswith(("token", "tokens"))
    return named and _NAME.fullmatch(value) is not None


@functools.lru_cache(maxsize=1024)  # each log record has the keys of the one before
def _names_secret(key: str) -> bool:
    words = [word.lower() for word in _WORD.findall(key[:256])]
    if "s3" in key.lower():  # a word with a number in it
        words = [*words[:-1], "s3", *words[-1:]]
    if not words:
        return False
    if _ALWAYS.intersection(words) or any(word.endswith(_ENDINGS) for word in words):
        return True
    pairs = list(itertools.pairwise(words))
    if any(word in ("key", "keys") and before in _KEY_AFTER for before, word in pairs):
        return True
    last, before = words[-1], words[-2] if len(words) > 1 else None
    if last == "token":
        return before not in _MODEL_TOKENS
    if last == "tokens":
        return before in _TOKENS_AFTER
    if last == "pass":
        return before is None or before in _PASS_AFTER
    if last == "signature":
        return before in _SIGNATURE_AFTER
    return words in (["auth"], ["bearer"], ["sig"], ["sas"], ["dsn"], ["x", "auth"])


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
    forms = {value, repr(value)[1:-1], quote(value, safe=""), quote_plus(value)}
    forms |= {line.strip() for line in value.split("\n") if len(line.strip()) > 15}
    for form in forms:
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


# Forms ------------------------------------------------------------------------------

_TOKENS = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      (?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{12,}          # AWS
    | gh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{16,}
    | gl(?:pat|dt|rt|cbt|ptt|soat)-[\w-]{16,}       # GitLab
    | xox[a-z]-[\w-]{8,} | xapp-[\w-]{8,}           # Slack
    | sk-(?=[\w-]*\d)[\w-]{16,}                     # OpenAI, Anthropic, DeepSeek
    | [spr]k_(?:live|test)_\w{10,} | whsec_\w{16,}  # Stripe
    | (?:hf|api_org)_[A-Za-z0-9]{16,}               # Hugging Face
    | AIza[\w-]{30,} | ya29\.[\w-]{16,} | GOCSPX-[\w-]{16,}   # Google
    | ey[JK][\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?       # JSON web tokens
    | SG\.[\w-]{10,}\.[\w-]{10,}                    # SendGrid
    | npm_[A-Za-z0-9]{20,} | pypi-AgE[\w-]{16,} | rubygems_[a-f0-9]{32,}
    | do[opr]_v1_[a-f0-9]{32,}                      # DigitalOcean
    | shp(?:at|ca|pa|ss)_[a-fA-F0-9]{16,}           # Shopify
    | sq0(?:atp|csp)-[\w-]{16,}                     # Square
    | key-[a-f0-9]{32} | SK[a-f0-9]{32}             # Mailgun, Twilio
    | lin_api_\w{16,} | ntn_\w{16,} | secret_\w{32,}   # Linear, Notion
    | r8_\w{24,} | gsk_\w{24,} | pplx-\w{24,} | xai-\w{24,} | nvapi-[\w-]{24,}
    | wandb_v\d_\w{16,} | local-[a-f0-9]{40}        # Weights & Biases
    | dapi[a-f0-9]{32} | dckr_pat_[\w-]{16,} | tskey-[\w-]{16,}
    | hv[sbr]\.[\w-]{16,} | AGE-SECRET-KEY-1\w{16,} | ATATT3[\w=-]{16,}
    | gls[ac]_\w{16,} | NRAK-\w{16,} | sntr[yu][su]_[\w=-]{16,} | PMAK-[\w-]{16,}
    | \d{8,10}:AA[\w-]{30,}                         # Telegram
    )""",
    re.X,
)
_PEM = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?!-----END).){0,16384}(?:-----END [A-Z ]{0,40}-----)?",
    re.S,
)
_HOOKS = re.compile(
    r"(?<=://)((?:hooks\.slack\.com/services|[\w.-]{0,99}discord(?:app)?\.com/api/"
    r"webhooks|[\w.-]{1,99}\.webhook\.office\.com)/)[^\s'\"]+"
)
# `user:password@` and `token@` of a URL: what is before the last @ of its first part,
# and a password that has a slash in it, which a port has not.
_USER_INFO = re.compile(
    r"(?<=://)(?:(?!(?:git|hg|svn|ssh|anonymous)@)[^\s/?#\"'<>]{1,2048}@"
    r"|[^\s/?#@:\"'<>]{0,256}:(?!\d{1,5}[/?#])(?:[^\s@\"'<>]{1,1024}@){1,8})"
)
_BARE_USER_INFO = re.compile(
    r"(?<![\w:/.+-])(?!mailto:|ssh:|git:|https?:)([\w.+-]{1,64}):(?![\d.]+@)[^\s:/@'\"]{3,256}@"
    r"(?=[\w-]{1,63}(?:\.[\w-]|:\d))"
)
_SCHEMES = re.compile(
    r"((?i:\bbearer)\s+)(?=[^\s\"',;]*[-A-Z0-9._=])[A-Za-z0-9._~+/=-]{6,}"
    r"|(\bBasic\s+)([A-Za-z0-9+/]{6,512}={0,2})"
)
_HEADER = re.compile(
    r"((?i:\b(?:proxy-)?authorization|\b(?:set-)?cookie)['\"]?\s*[:=]\s*)"
    r"(?!\s*['\"])[^\n\"']+"
)
_LOGIN = re.compile(
    r"(\blogin\s+\S+\s+password\s+|(?<!\S)(?:-u|--user)[ =][^\s:]{1,64}:"
    r"|\bIDENTIFIED BY\s+"
    r"|(?i:\b(?:api|access|secret|private|auth)[ -](?:key|token))\s?(?:=|:|is)\s?)\S+"
)
_CONNECTION = re.compile(
    r"((?i:password|pwd|accountkey|sharedaccesskey)\s?=\s?)[^;'\"\n=]{1,256}(?==*;)"
)
_ELEMENT = re.compile(r"(<([\w:.-]{1,80})>)[^<]{1,8192}(?=</\2>)")
_QUERY = re.compile(r"([?&](?:key|sig|auth|hmac|sas|pw|code(?==.{8}))=)[^\s&#'\"<>]+")
_KEY_VALUE = re.compile(
    r"""(?P<key>(?<![\w.-])-{0,2}[A-Za-z_][\w.-]{1,80})
        (?P<between>\\?['"]?\s?(?:(?:=>|:=|=)\s{0,40}|:\s?)|\\?['"]\s?,\s?(?=['"])
          |(?<=\w)\s(?=[^\s-]))
        (?P<value>[rbfu]{0,2}"(?:[^"\\]|\\.){0,8192}"|[rbfu]{0,2}'(?:[^'\\]|\\.){0,8192}'
          |\\"[^"\\]{0,8192}\\"
          |[\[{(][^\]})]{0,8192}[\]})]?
          |[|>][+-]?(?:\n[ \t]+[^\n]+)+
          |['"]?[^\s;&"'<>]+)""",
    re.X,
)
_PROSE = {
    "a", "an", "cannot", "expected", "got", "invalid", "is", "it", "missing", "must",
    "needs", "no", "not", "required", "takes", "text", "the", "unknown", "was",
}  # fmt: skip
"""How the message about a key goes on after its colon."""
_EMPTY = {"", "None", "null", "True", "False", "true", "false", "~", MASK}
_ENV = re.compile(r"\s*\$\{env(\.\w+)?:\w+:?\}[,)\]}]*")


def _without_credentials(found: re.Match[str]) -> str:
    """Of `Bearer ...`, and of `Basic ...` where that is `user:password` in base64."""
    if found[1]:
        return f"{found[1]}{MASK}"
    try:
        decoded = base64.b64decode(found[3] + "=" * (-len(found[3]) % 4))
    except ValueError:
        return found[0]
    return f"{found[2]}{MASK}" if b":" in decoded else found[0]


def _without_content(found: re.Match[str]) -> str:
    """Of an XML element whose name is a secret key."""
    return found[1] + MASK if is_secret_key(found[2]) else found[0]


_FORMS: tuple[
    tuple[tuple[str, ...], re.Pattern[str], str | Callable[[re.Match[str]], str]], ...
] = (
    (("private key",), _PEM, MASK),
    (("://",), _USER_INFO, f"{MASK}@"),
    (("://",), _HOOKS, rf"\1{MASK}"),
    (("@",), _BARE_USER_INFO, f"{MASK}@"),
    (("",), _TOKENS, MASK),
    (("author", "cook"), _HEADER, rf"\1{MASK}"),
    (("bearer", "basic"), _SCHEMES, _without_credentials),
    (("login", "-u", "identified", "key", "token"), _LOGIN, rf"\1{MASK}"),
    (("=",), _QUERY, rf"\1{MASK}"),
    ((";",), _CONNECTION, rf"\1{MASK}"),
    (("</",), _ELEMENT, _without_content),
)
"""In turn: what a text with such a form has, in lower case; the form; what is shown.

Most log records have no sign of most forms, and a search for a form costs far more. No
sign has an `i` or an `s` where the form ignores case: other letters pass for those.
"""


def redact(text: str) -> str:
    """`text` with its secrets as `******`, and values of `${env:NAME}` as that."""
    text = _without_known(text)
    has = text.lower().__contains__
    for signs, form, shown in _FORMS:
        if any(map(has, signs)):
            text = form.sub(shown, text)
    return _without_pairs(text)


def _without_pairs(text: str) -> str:
    """Without the values of secret keys, whatever the notation of the pair."""
    parts, start, position = [], 0, 0
    while found := _KEY_VALUE.search(text, position):
        # text after a key that is not secret may hold another key: `error: password: x`
        position = found.end("key")
        value = found["value"]
        if not _hides(found["key"], found["between"], value):
            continue
        bare = re.fullmatch(r"\\?[rbfu]{0,2}(\\?['\"])(.*?)\\?['\"]", value, re.S)
        inside = value if bare is None else bare[2]
        end = position = found.end()
        line = text.rfind("\n", 0, found.start()) + 1
        if bare is None and ":" in found["between"] and "\n" not in value:
            # first on its line, as in YAML, or in a message: a text may have spaces
            if text[line : found.start()].rstrip()[-1:] in ("", "-", ":"):
                position = (text.find("\n", end) + 1 or len(text) + 1) - 1
        bared = inside.strip(",)]}")
        if bared in _EMPTY or _ENV.fullmatch(inside) or is_name(found["key"], bared):
            continue
        mark = "" if bare is None else bare[1]
        parts += [text[start : found.start("value")], mark, MASK, mark]
        start = position
    return "".join([*parts, text[start:]])


def _hides(key: str, between: str, value: str) -> bool:
    names = key.strip("-").split(".")
    if not any(map(is_secret_key, names)):
        return False
    if between.isspace():  # only a flag takes its value without a sign between
        return key.startswith("--")
    return not (between.strip() == ":" and value.rstrip(",;.") in _PROSE)
