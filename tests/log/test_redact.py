"""Whatever leaves the process, in whatever notation: no secret, and all the rest."""

import json
import logging

import pytest

from devrun.config import Config
from devrun.config.origin import redacted
from devrun.errors import ConfigError, DevrunError
from devrun.log.jsonlines import strict_line
from devrun.log.logger import SafeFormatter, print_log
from devrun.redact import MASK, redact, remember
from devrun.text import LINE, RECORD, escape_lines, one_line

S = "hunter2Xq9"
PAIRS = (
    "api_key", "apikey", "apiKey", "API-KEY", "OPENAI_API_KEY", "wandb_key", "s3_key",
    "aws_secret_access_key", "azure_storage_key", "AccountKey", "SharedAccessKey",
    "password", "Password", "PASSWD", "pwd", "PGPASSWORD", "db_pass", "smtp_pass",
    "pass", "passphrase", "secret", "client_secret", "hub_token", "hf_token",
    "auth_token", "access_token", "refresh_token", "wandbToken", "bot_token", "token",
    "credentials", "private_key", "ssh_key", "session_key", "webhook_url", "jwt",
    "sessionid", "data.storage.secret_key", "x-api-key", "encryption_key", "id_token",
    "githubKey", "master_key", "app_token", "database_pass",
)  # fmt: skip
NOTATIONS = (
    "failed: {key}={value}",
    "failed: {key}='{value}', next=1",
    '{{"{key}": "{value}"}}',
    "{{'{key}': '{value}'}}",
    '{{\\"{key}\\": \\"{value}\\"}}',
    "{key}: '{value}'",
    "--{key}={value} --other",
    "https://host.org/path?{key}={value}&page=2",
    "Server=db;{key}={value};Timeout=3",
    "{key} = [{value}, {value}]",
    "export {key}={value} && train",
    'TypeError: __init__({key}="a {value} b")',
)
FORMS = (
    f"Authorization: Bearer {S}",
    f"authorization: Basic {S}==",
    f"{{'Authorization': 'Bearer {S}'}}",
    f"curl -H 'Authorization: token {S}' host",
    f"Cookie: id={S}; theme=dark",
    f"{{'Cookie': 'a=1; id={S}'}}",
    f"sent with Bearer {S}",
    f"postgres://bob:{S}@db/x",
    f"redis://:{S}@cache:6379/0",
    f"https://{S}@github.com/a/b.git",
    f"s3://key:{S}@bucket/path",
    f"https://b.s3.amazonaws.com/k?X-Amz-Signature={S}&X-Amz-Expires=60",
    f"https://a.blob.core.windows.net/c?sv=2020&sig={S}&se=2026",
    f"error: password: '{S}'",
    f'cut off: api_key: "{S}',
)
HARMLESS = (
    "cls_token=3, num_tokens: 196, pad_token_id=0, max_token_len=77",
    "tokenizer: bert-base; token_dropout: true; tokens: 512",
    "3 passes of the compass; bypass: true; secretary: bob; num_passes=2",
    "KeyError: 'img_key'",
    "unexpected: 'dino_token', 'pos_embed', 'blocks.0.attn.qkv.weight'",
    "freeze: ['dino_token', 'cls_token'] match nothing",
    "neck.mem_token: shape (1, 1, 8), point_token: missing in the file",
    "query_key=5 sort_keys=true revise_keys=[['^a', '']] key: value",
    "AttributeError: 'Linear' object has no attribute 'cls_token'",
    "unexpected key 'head.weight'; did you mean 'heads.weight'?",
    "lr: 1.000e-01, eta: 0:00:03, time: 0.123, loss: 0.5",
    "loaded from https://download.pytorch.org/models/resnet18-f37072fd.pth",
    "https://host.org:8080/path/@user?page=2&size=3",
    "git clone ssh://git@github.com/a/b.git; s3://bucket/key/part",
    "mail bob@example.org about devrun@1.2",
    "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "commit 0123456789abcdef0123456789abcdef01234567-dirty",
    "Epoch [1][10/20]\tlr: 1.0e-3, Basic block: ResNet, basic evaluation",
    "hidden_size=768 monkey=1 keyboard='qwerty' turkey: 3 author: bob",
    "token_type_ids: [0, 1], eos_token='</s>', mask_token: '[MASK]'",
    "use_auth_token: true, api_key=None, password=''",
    "forward_pass=3 first_pass: 2 num_key_value_heads=8 key_dim: 64",
    "model.backbone.layers.0.attn.qkv: (4, 8)",
    "--load-from work_dirs/a/checkpoints/step-00000276 --seed 1",
    "${env:WANDB_API_KEY} api_key=${env:WANDB_API_KEY}",
    "a.yaml:3: x.password: takes text, not a secret",
    "a.yaml:3: api_key: unknown key; did you mean 'app'?",
    "Basic ResNet18 training, Basic augmentation2",
    "https://host.org/status?code=404&k=5",
    "time 12:30:45 at node-1:29500, rank 0",
    "signature: (self, runner), sig(x) = 1",
    "skipped-because-the-mask-is-empty sk-learn risk-assessment-of-the-model",
)
CORPUS = (
    *(
        NOTATIONS[n % len(NOTATIONS)].format(key=k, value=S)
        for n, k in enumerate(PAIRS)
    ),
    *(notation.format(key="api_key", value=S) for notation in NOTATIONS),
    *FORMS,
)


@pytest.mark.parametrize("form", CORPUS)
def test_no_notation_shows_a_secret(form):
    shown = redact(form)
    assert S not in shown
    assert MASK in shown
    assert redact(shown) == shown


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_without_secrets_stays(text):
    assert redact(text) == text


@pytest.mark.parametrize("form", CORPUS[::5])
def test_every_way_out_uses_the_redactor(form, capsys):
    from devrun.cli.console import complain, say

    secret = S
    record = logging.makeLogRecord({"msg": form, "levelname": "INFO"})
    error = ConfigError(form)
    try:
        raise RuntimeError(form) from error
    except RuntimeError:
        import sys

        record.exc_info = sys.exc_info()
    complain(form)
    say(form)
    print_log(form)
    out = capsys.readouterr()
    cfg = Config({"x": [form], "y": {"z": form}})
    texts = [
        SafeFormatter().format(record), str(error), out.out, out.err,
        strict_line({"a": form, "b": [form]}), cfg.pretty_text, cfg.dump(), repr(cfg),
    ]  # fmt: skip
    for text in texts:
        assert secret not in text
        assert json.dumps(secret)[1:-1] not in text


def test_a_value_of_the_environment_is_shown_as_its_reference(monkeypatch):
    monkeypatch.setenv("DR_PLACE", "/mnt/Quiet Place")
    monkeypatch.setenv("DR_PIN", "88123")
    text = "a: '${env:DR_PLACE}/x'\nb: ${env:DR_PIN}\n"
    cfg = Config.fromstring(text, ".yaml")
    assert cfg.a == "/mnt/Quiet Place/x"
    joined = Config({"c": f"{cfg.a}/deeper"})
    for shown in (
        redact(f"no folder {cfg.a!r}"), joined.pretty_text, one_line(cfg.a),
        str(DevrunError("in " + cfg.a)), redact("at /mnt/Quiet%20Place"),
        redact("at %2Fmnt%2FQuiet%20Place"), repr(redacted({"k": cfg.a + "?"})),
    ):  # fmt: skip
        assert "Quiet" not in shown or "at /mnt" in shown
    from devrun.config.origin import describe

    assert describe(cfg.b) == "'${env:DR_PIN}'"
    assert Config.fromstring(joined.pretty_text, ".py").c == "/mnt/Quiet Place/x/deeper"


def test_words_that_logs_are_made_of_are_not_hidden():
    for word in ("train", "val", "0.1", "12", "cpu", "1e-3"):
        remember(word, "${env:X}")
    line = "train val 0.1 12 cpu 1e-3"
    assert redact(line) == line


def test_messages_and_records_are_bounded_and_keep_their_end():
    text = f"{'x' * 5_000_000} password={S}; do this"
    line, record = one_line(text), escape_lines(text)
    assert len(line) < LINE + 100
    assert len(record) < RECORD + 100
    for shown in (line, record):
        assert shown.startswith("xxx")
        assert shown.endswith("; do this")
        assert S not in shown


def test_no_way_out_lets_a_character_through_that_is_not_printable(capsys):
    from devrun.cli.console import complain, say
    from devrun.log.logger import SafeFormatter

    wild = "".join(chr(i) for i in range(0x20000) if not chr(i).isprintable())
    for start in range(0, len(wild), 1500):
        part = f"a{wild[start : start + 1500]}b"
        complain(part)
        say(part)
        print_log(part)
        said = capsys.readouterr()
        cfg = Config({"x": part.replace("\x00", "")})
        record = logging.makeLogRecord({"msg": part, "levelname": "INFO"})
        texts = [said.out, said.err, SafeFormatter().format(record), cfg.pretty_text]
        texts += [cfg.dump(), strict_line({"x": part})]
        for text in texts:
            assert all(char.isprintable() or char in "\n\t" for char in text)
