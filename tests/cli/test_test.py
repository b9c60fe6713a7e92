import json
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


def test_a_file_for_the_results_that_cannot_be_written_is_told_at_once(
    config, capsys, tmp_path
):
    path = config()
    assert main(["train", path, "--work-dir", "out"]) == 0
    newest = json.loads(Path("out/run.json").read_text())["last_checkpoint"]
    capsys.readouterr()
    for out in ("missing/found.json", str(tmp_path), f"{path}/found.json"):
        assert main(["test", path, newest, "--out", out]) == 8
        (line,) = capsys.readouterr().err.splitlines()  # nothing was evaluated
        assert "--out" in line and "folder that exists" in line
