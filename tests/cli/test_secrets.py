"""Nothing that a run prints or leaves holds a secret of its config or environment."""

import warnings
from pathlib import Path

import pytest

from devrun.hooks import HOOKS, Hook

SECRET, ENV, SHORT = "hunter2Xq9-of-config", "value Of-The/variable", "Zq7!"
WORST = "\x1b[2J\u202egnp.exe\u2066"


@HOOKS.register_module()
class TalkingHook(Hook):
    """Says what it was given, wherever a hook can say something."""

    def __init__(self, api_key, place, short, number=None, fails=False):
        self.given = f"{api_key} {place} {short}"
        self.number, self.fails = number, fails

    def before_run(self, runner):
        runner.logger.warning("given: %s", self.given)
        runner.meta["exp_name"] = self.given
        runner.meta["note"] = {"token": "tok-in-meta-77", "text": self.given}
        runner.meta["wild"] = WORST

    def after_train_iter(self, runner):
        runner.log_buffer.output["text"] = self.given + WORST
        if self.fails:
            raise RuntimeError(f"no luck with {self.given}{WORST}")


@HOOKS.register_module()
class PickyHook(Hook):
    def __init__(self, login, number, x):
        self.sum = 1 + number


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("DR_PLACE", ENV)
    monkeypatch.setenv("DR_SHORT", SHORT)


def everything(work_dir):
    return {
        path: path.read_bytes().decode("utf-8", "surrogateescape")
        for path in Path(work_dir).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("fails", [False, True])
def test_no_file_and_no_line_of_a_run_holds_a_secret(train, config, environment, fails):
    hook = {
        "type": "TalkingHook",
        "api_key": SECRET,
        "place": "in ${env:DR_PLACE}",
        "short": "${env:DR_SHORT}",
        "fails": fails,
    }
    file = config(
        custom_hooks=[hook],
        **{"x-wild": WORST, "x-url": f"https://bob:{SECRET}@host/x"},
    )
    options = ["x-other.password=on-the-command-line"]
    status, out, err = train(file, "--work-dir", "run", "--cfg-options", *options)
    assert status == int(fails)
    texts = {"stdout": out, "stderr": err, **everything("run")}
    assert any("checkpoints" in str(name) for name in texts) != fails
    secrets = (SECRET, ENV, SHORT, "tok-in-meta-77", "on-the-command-line")
    for name, text in texts.items():
        for secret in secrets:
            assert secret not in text, (name, secret)
        for char in ("\x1b", "\u202e", "\u2066"):
            assert char not in text or str(name).endswith(".safetensors"), name
    assert "${env:DR_PLACE}" in texts["stderr"]
    assert "${env:DR_PLACE}" in texts[Path("run/config.yaml")]


def test_a_place_from_the_environment_is_used_and_not_told(
    train, config, monkeypatch, tmp_path
):
    monkeypatch.setenv("DR_PLACE", str(tmp_path / "Hidden Place"))
    file = config(work_dir="${env:DR_PLACE}", checkpoint_config={"max_keep_ckpts": 1})
    more = ("--resume-from", "auto", "--cfg-options", "runner.max_epochs=4")
    for words in ((), more):
        status, out, err = train(file, *words)
        assert status == 0, err
        for text in (out, err, *everything(tmp_path / "Hidden Place").values()):
            assert "Hidden Place" not in text
        assert "checkpoint: ${env:DR_PLACE}/checkpoints/step-" in out
    (best,) = (tmp_path / "Hidden Place/checkpoints").glob("best_*")
    assert len(list(best.parent.glob("step-*"))) == 1


@pytest.mark.parametrize(
    "section",
    [
        {"type": "MLP", "in_features": "${env:DR_PLACE}", "hidden": [8]},
        {"type": "MLP", "in_features": 16, "hidden": SECRET, "num_classes": 4},
        {"type": "MLP", "in_features": 16, "api_key": SECRET},
        {"type": "${env:DR_PLACE}"},
    ],
)
def test_the_one_line_of_an_error_holds_no_secret(train, config, environment, section):
    extra = {"x-known": {"password": SECRET}}
    status, out, err = train(config(model=section, **extra), "--work-dir", "run")
    assert status == 2
    for text in (out, err, *everything("run").values()):
        assert SECRET not in text
        assert ENV not in text


def test_a_type_error_shows_the_keys_of_texts_and_no_text(train, config):
    hook = {"type": "PickyHook", "login": "bob", "number": "7", "x": "unsaid-77Xy"}
    status, _, err = train(config(custom_hooks=[hook]), "--work-dir", "run")
    assert status == 2
    assert "text was given as login, number, x; a number has no quotes" in err
    for text in (err, *everything("run").values()):
        assert "unsaid-77Xy" not in text or "x: unsaid" in text


def test_warnings_of_python_are_made_safe_too(train, config, monkeypatch):
    def warn(self, runner):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn_explicit(f"password={SECRET}{WORST}", UserWarning, "x.py", 7)

    monkeypatch.setattr(TalkingHook, "before_run", warn)
    hook = {"type": "TalkingHook", "api_key": "a", "place": "b", "short": "c"}
    status, _, err = train(config(custom_hooks=[hook]), "--work-dir", "run")
    assert status == 0
    assert "x.py:7: UserWarning: password=******" in err
    assert SECRET not in err
    assert WORST[0] not in err
