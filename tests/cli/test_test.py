import json
import sys
from pathlib import Path

import pytest

from devrun.cli.main import main


@pytest.fixture
def evaluate(capsys):
    """`evaluate(*words)` -> (status, stdout, stderr)."""

    def run(*words):
        status = main(["test", *map(str, words)])
        return status, *capsys.readouterr()

    return run


def test_it_gives_what_the_training_found(config, train, evaluate):
    ema = {"type": "EMAHook", "momentum": 0.2, "warm_up": 1}
    path = config(custom_hooks=[ema], optimizer={"type": "SGD", "lr": 0.5})
    assert train(path, "--work-dir", "out", "--seed", "1")[0] == 0
    found = json.loads(Path("out/run.json").read_text())["metrics"]
    before = sorted(Path("out").rglob("*"))
    newest = "out/checkpoints/step-00000008"
    words = (path, newest, "--split", "val", "--out", "found.json")
    status, out, err = evaluate(*words)
    assert status == 0, err
    assert out.startswith("val: ")
    facts = json.loads(Path("found.json").read_text())
    assert facts["results"] == found
    assert facts["checkpoint"] == newest
    assert evaluate(*words, "--weights", "trained")[0] == 0
    assert (
        json.loads(Path("found.json").read_text())["results"]["loss"] != found["loss"]
    )
    assert sorted(Path("out").rglob("*")) == before  # nothing is written there
    status, _, err = evaluate(path, newest)
    assert (status, err.count("\n")) == (2, 1)
    assert "the config has no data.test; choose --split val" in err
    words = (path, newest, "--split", "val", "--cfg-options", "model.hidden=[9]")
    status, _, err = evaluate(*words)
    assert status == 3
    assert err.splitlines()[-1].startswith("devrun: error: ")


@pytest.mark.parametrize("flags", [(), ("--no-progress",)])
def test_on_a_terminal_it_shows_how_far_it_is(
    config, train, evaluate, monkeypatch, flags
):
    path = config()
    assert train(path, "--work-dir", "out", "--no-progress")[0] == 0
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    words = (path, "out/checkpoints/step-00000008", "--split", "val")
    status, _, err = evaluate(*words, *flags)
    assert status == 0, err
    assert ("eval:" in err and "/2 [" in err) != bool(flags)
