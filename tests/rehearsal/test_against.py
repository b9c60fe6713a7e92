"""`devrun compare --against`: a recorded run, or a recording, against a config now."""

from __future__ import annotations

import json

import pytest
import torch
import yaml

from tests.cli.conftest import CONFIG
from tests.rehearsal.test_report import copied, log_of, state_of
from tests.support.command import command

MODEL = {"type": "MLP", "in_features": 16, "hidden": [8], "num_classes": 4}
DROPPING = {"model": {**MODEL, "dropout": 0.3}, "seed": 7}


@pytest.fixture
def compare(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        capsys.readouterr()
        return command(capsys, "compare", *words)

    return run


def config(tmp_path, **changes):
    path = tmp_path / "now.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **changes}))
    return path


def test_a_run_comes_again_bit_by_bit_and_stays_as_it_is(trained, compare):
    work_dir = trained("dropping", **DROPPING)
    before = state_of(work_dir)
    status, out, err = compare("--against", work_dir, "--json")
    found = json.loads(out)
    assert (status, err, found["parting"]) == (0, "", None)
    assert (found["closest"], found["missing"], found["steps"]) == (0, [], 8)
    assert found["kinds"] == ["rate", "logged", "weight"]
    assert state_of(work_dir) == before


def test_another_learning_rate_is_found_with_the_differences(
    trained, compare, tmp_path
):
    now = config(tmp_path, **DROPPING, optimizer={"type": "SGD", "lr": 0.05})
    facts = trained("dropping", **DROPPING) / "run.json"
    work_dir = copied(lambda: facts.parent, tmp_path)
    known = json.loads(facts.read_text())
    known["versions"]["torch"] = "1.0"
    (work_dir / "run.json").write_text(json.dumps(known))
    status, out, _ = compare(now, "--against", work_dir, "--json")
    found = json.loads(out)
    parting, differences = found["parting"], found["differences"]
    assert (status, parting["step"], parting["kind"]) == (10, 2, "rate")
    assert differences["config optimizer.lr"] == [0.1, 0.05]
    assert differences["versions.torch"] == ["1.0", str(torch.__version__)]
    assert compare(now, "--against", work_dir)[1].splitlines()[1].startswith("  ")


def test_another_epsilon_shows_in_the_first_checkpoint_only(trained, compare, tmp_path):
    # so small that the log, which keeps five decimals, cannot show it
    adam = {"type": "Adam", "lr": 0.01, "betas": [0.9, 0.999]}
    work_dir = trained("adam", optimizer=adam, seed=7)
    now = config(tmp_path, optimizer={**adam, "eps": 3e-7}, seed=7)
    status, out, _ = compare(now, "--against", work_dir, "--json")
    parting = json.loads(out)["parting"]
    assert (status, parting["step"], parting["kind"]) == (10, 4, "weight")


def test_a_recording_of_another_machine_is_compared(compare, tmp_path):
    kept = tmp_path / "there.recording"
    now = config(tmp_path, **DROPPING)
    status, out, _ = compare(now, "--record", kept, "--steps", "3")
    assert status == 0 and out.startswith(str(kept))
    assert compare(now, "--against", kept)[0] == 0
    words = ("--cfg-options", "optimizer.momentum=0.9", "--json")
    status, out, _ = compare(now, "--against", kept, *words)
    parting = json.loads(out)["parting"]
    assert (status, parting["step"], parting["kind"]) == (10, 2, "update")


@pytest.mark.parametrize(
    "content", [b"", b"x" * 100, b"\x02" + bytes(7) + b"{}", b"\x80\x04cos\nsystem\n."]
)
def test_another_file_is_no_recording(compare, tmp_path, content):
    (tmp_path / "odd").write_bytes(content)
    status, out, err = compare(config(tmp_path), "--against", "odd")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "is no recording of devrun compare --record" in err


def damaged(folder):
    log_of(folder).write_text('{"mode": "train", "step"')
    for saved in (folder / "checkpoints").iterdir():
        if saved.is_dir():
            (saved / "MANIFEST.json").write_text("{")


def gone_on(folder):
    file = folder / "config.yaml"
    file.write_text(file.read_text() + "resume_from: elsewhere/checkpoints/iter_4\n")


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (None, ("--steps", "1"), "ends before anything that"),
        (None, ("--devices", "cpu,hpu"), "--against and --devices clash"),
        (None, ("--record", "file"), "--against and --record clash"),
        (damaged, (), "there is nothing to compare with"),
        (gone_on, (), "its first updates are those of that run"),
    ],
)
def test_bad_input_is_one_line(trained, compare, tmp_path, change, words, said):
    work_dir = copied(trained, tmp_path)
    if change is not None:
        change(work_dir)
    status, out, err = compare(config(tmp_path), "--against", work_dir, *words)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "nowhere"), "'nowhere' is not there"),
        (("--against", "."), "has no log of a run"),
        ((), "nothing to compare"),
    ],
)
def test_nothing_to_compare_is_one_line(compare, words, said):
    status, out, err = compare(*words)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert said in err
