import json
import sys
from pathlib import Path

import pytest

from devrun.cli.main import main
from tests.cli.conftest import record


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
    found = record("out")["metrics"]
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


def test_a_run_its_pointers_and_its_words_name_a_checkpoint(config, train, evaluate):
    path = config()
    assert train(path, "--seed", "1")[0] == 0
    run = Path("work_dirs/small")
    newest = run / "checkpoints" / "step-00000008"
    (best,) = (run / "checkpoints").glob("best_accuracy_*")
    for given, meant in [
        ("latest", newest),
        (run, newest),
        (run / "checkpoints", newest),
        (run / "checkpoints" / "latest.json", newest),
        (run / "checkpoints" / "best.json", best),
        ("best", best),
    ]:
        words = ("--split", "val", "--out", "found.json")
        status, _, err = evaluate(path, given, *words)
        assert status == 0, err
        facts = json.loads(Path("found.json").read_text())
        assert Path(facts["checkpoint"]) == meant
        assert f"note: {given} is {meant}" in err
    named = config("named.yaml", work_dir=str(run))
    assert evaluate(named, "best", "--split", "val")[0] == 0
    assert main(["export", str(run), "--output", "x.pth"]) == 0
    assert train(path, "--load-from", run / "checkpoints" / "best.json")[0] == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("best", "there is no best checkpoint in work_dirs"),
        ("latest", "there is no latest checkpoint in work_dirs"),
        ("nowhere", "there is no 'nowhere'"),
        ("best.json", "points at no checkpoint"),
        ("text.json", "is no torch file"),
        ("text.pth", "is no torch file"),
    ],
)
def test_what_is_no_checkpoint_is_refused_without_wrong_advice(
    config, evaluate, given, words
):
    for name in ("best.json", "text.json", "text.pth"):
        Path(name).write_text('{"checkpoint": "gone"}')
    status, _, err = evaluate(config(), given, "--split", "val")
    assert status == 3
    (line,) = [line for line in err.splitlines() if "error" in line]
    assert words in line
    assert "--allow-pickle" not in line


def test_a_file_for_the_results_that_cannot_be_written_is_told_at_once(
    config, capsys, tmp_path
):
    path = config()
    assert main(["train", path, "--work-dir", "out"]) == 0
    newest = record("out")["last_checkpoint"]
    capsys.readouterr()
    for out in ("missing/found.json", str(tmp_path), f"{path}/found.json"):
        assert main(["test", path, newest, "--out", out]) == 8
        (line,) = capsys.readouterr().err.splitlines()  # nothing was evaluated
        assert "--out" in line and "folder that exists" in line


def test_results_are_not_written_in_a_format_that_the_name_does_not_say(config, capsys):
    assert main(["test", config(), "latest", "--out", "found.pkl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--out 'found.pkl' must end in .json" in line and "devrun predict" in line
    assert not Path("found.pkl").exists()


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
