import pickle

import pytest

from devrun.config import Config, check_config
from devrun.errors import ConfigError
from devrun.redact import MASK


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    monkeypatch.setenv("DR_NAME", "run 7")
    monkeypatch.setenv("DR_COUNT", "12")
    monkeypatch.delenv("DR_NONE", raising=False)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${env:DR_NAME}", "run 7"),
        ("x-${env:DR_NAME}-${env:DR_COUNT}", "x-run 7-12"),
        ("${env:DR_NONE:some default: yes}", "some default: yes"),
        ("${env:DR_NONE:}", ""),
        ("${env:DR_COUNT}", "12"),
        ("$HOME and ${HOME}", "$HOME and ${HOME}"),
    ],
)
@pytest.mark.parametrize("name", ["c.py", "c.yaml"])
def test_references_are_resolved_and_dumped_as_written(load, written, value, name):
    text = f"a = [{written!r}]" if name == "c.py" else f"a: ['{written}']"
    cfg = load(text, name)
    assert cfg.a == [value]
    assert isinstance(cfg.a[0], type(value))
    for clone in (cfg, pickle.loads(pickle.dumps(cfg))):
        assert written in clone.pretty_text
        assert Config.fromstring(clone.pretty_text, ".py") == cfg


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (
            "${env:DR_NONE}",
            "c.yaml:2: a.b: the environment variable DR_NONE is not set",
        ),
        ("${env:}", "is no environment reference"),
        ("${env:A B}", "is no environment reference"),
        ("${env:DR_NAME", "is no environment reference"),
        ("${env.int:DR_NAME}", "write ${env:NAME} or ${env:NAME:default}"),
    ],
)
def test_wrong_references_are_refused_with_their_place(refusal, written, reason):
    assert reason in refusal(f"a:\n  b: '{written}'\n", "c.yaml")


SECRET = "s3cr3t-value"
HIDING = f"""\
password: {SECRET}
logger:
  - {{api_key: {SECRET}, keep: shown}}
credentials: {{user: {SECRET}, nested: [{SECRET}, 1]}}
url: https://me:{SECRET}@example.org/x
pin: {{secret: 123456}}
tokenizer: {{pad_token: shown2}}
empty_password: ''
no_password: null
"""


def test_secrets_are_in_no_output(load, tmp_path):
    cfg = load(HIDING, "c.yaml")
    outputs = [cfg.pretty_text, repr(cfg), str(cfg._cfg_dict), repr(cfg.logger)]
    for name in ("a.py", "a.yaml", "a.json"):
        cfg.dump(tmp_path / name)
        outputs.append((tmp_path / name).read_text())
    for output in outputs:
        assert SECRET not in output
        assert "123456" not in output
    assert cfg.logger[0].api_key == cfg.password == SECRET
    reloaded = Config.fromfile(tmp_path / "a.yaml")
    assert reloaded.tokenizer.pad_token == "shown2"
    assert reloaded.logger[0].keep == "shown"
    assert reloaded.url == f"https://{MASK}@example.org/x"
    assert (reloaded.empty_password, reloaded.no_password) == ("", None)


def test_a_reference_to_a_secret_is_dumped_but_its_default_is_not(load):
    cfg = load("password: ${env:DR_NAME}\ntoken: ${env:DR_NONE:hunter2}\n", "c.yaml")
    assert "${env:DR_NAME}" in cfg.pretty_text
    assert "run 7" not in cfg.pretty_text
    assert "hunter2" not in cfg.pretty_text
    assert cfg.token == "hunter2"


def test_a_masked_secret_is_not_trained_with(load):
    cfg = load("log_config: {hooks: [{type: W, api_key: '******'}]}\n", "c.yaml")
    with pytest.raises(
        ConfigError, match=r"c.yaml:1: .*hooks.0.api_key: the secret was"
    ):
        check_config(cfg)


def test_a_large_variable_is_paid_for_at_each_reference(tmp_path, monkeypatch):
    monkeypatch.setenv("DR_BIG", "x" * 120_000)
    rows = "\n".join(["  - '${env:DR_BIG}'"] * 2000)
    path = tmp_path / "big.yaml"
    path.write_text(f"x-rows:\n{rows}\n")
    with pytest.raises(ConfigError, match="more work than a configuration may take"):
        Config.fromfile(path)
