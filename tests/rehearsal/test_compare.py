"""`devrun compare`: planted faults are named where they are, and nothing else is."""

import functools
import io
import json
import os
from pathlib import Path

import pytest
import torch
import yaml

from tests.cli.conftest import CONFIG
from tests.rehearsal.pairs import PAIRS, device_of, right
from tests.support import zygote
from tests.support.command import command


def slow_of(name):
    return PAIRS[name].get("slow", False)


NAMED = [pytest.param(n, marks=[pytest.mark.slow] * slow_of(n)) for n in PAIRS]


@functools.cache
def results(device, slow):
    """name -> (status, result, stderr), of one process: an emulator stays in one."""
    names = [n for n in PAIRS if (device_of(n), slow_of(n)) == (device, slow)]
    words = ("-m", "tests.rehearsal.pairs", device, *names)
    done = zygote.run(words, cwd=zygote.ROOT, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == len(names), done.stderr
    return {name: result for name, *result in map(json.loads, lines)}


@pytest.mark.parametrize("name", NAMED)
def test_a_fault_is_named_and_nothing_else(name):
    status, found, said = results(device_of(name), slow_of(name))[name]
    assert right(name, status, found), (found and found["parting"], said)


MMCV_HOOK = """from mmcv.runner import HOOKS, Hook
HOOKS.register_module(name="Quiet", module=Hook)
"""


def test_the_emulator_of_a_device_keeps_the_options_of_the_config(tmp_path):
    device = {"type": "hpu", "mode": "eager"}
    text = yaml.safe_dump({**CONFIG, "evaluation": None, "device": device})
    (tmp_path / "one.yaml").write_text(text)
    words = ["-m", "devrun", "compare", "one.yaml", "--devices", "cpu,hpu", "--json"]
    done = zygote.run([*words, "--steps", "1", "--emulate"], cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parting"] is None


def test_modules_written_for_mmcv_are_compared(tmp_path):
    (tmp_path / "quiet.py").write_text(MMCV_HOOK)
    config = {**CONFIG, "custom_hooks": [{"type": "Quiet"}]}
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(yaml.safe_dump(config))
    words = ("-m", "devrun", "compare", "a.yaml", "b.yaml", "--steps", "1")
    words += ("--import", "quiet")
    assert zygote.run(words, cwd=tmp_path, timeout=120).returncode == 2
    done = zygote.run([*words, "--mmcv"], cwd=tmp_path, timeout=120)
    assert done.returncode == 0 and "they agree: " in done.stdout


@pytest.mark.parametrize("words", [("check", "none.yaml"), ("export", "none")])
def test_every_command_with_the_flag_for_mmcv_honours_it(words):
    done = zygote.run(["-m", "devrun", *words, "--mmcv"], timeout=120)
    assert done.stderr.startswith("devrun: note: imports of mmcv.runner and mmcv.utils")


@pytest.fixture
def compare(capsys, tmp_path, monkeypatch):
    """`compare(*words)` in a folder with a config and one of another model."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")  # nobody waits for it
    other = {"type": "torch.nn.Linear", "in_features": 16, "out_features": 4}
    for name, changes in (("first.yaml", {}), ("other.yaml", {"model": other})):
        (tmp_path / name).write_text(yaml.safe_dump({**CONFIG, **changes}))

    def run(*words):
        return command(capsys, "compare", *words)

    return run


def test_what_was_found_is_said_in_words(compare):
    status, out, _ = compare("first.yaml", "other.yaml", "--steps", "1")
    assert status == 10 and "they part at update 1: " in out
    assert "usual cause: " in out
    words = ("first.yaml", "--precisions", "fp32,bf16", "--steps", "2")
    status, out, _ = compare(*words)
    assert status == 0 and "fp32 and bf16: 2 updates" in out
    assert "they agree: " in out and "of the loss" in out
    assert compare(*words)[1] == out  # nothing is left to chance


def test_a_recording_has_all_that_a_comparison_needs(compare):
    assert compare("first.yaml", "--record", "kept", "--steps", "3")[0] == 0

    def against(*words):
        status, out, _ = compare("first.yaml", "--against", "kept", "--json", *words)
        found = json.loads(out, parse_constant=lambda name: pytest.fail(name))
        return status, found, found["parting"]

    status, found, _ = against()
    assert (status, found["closest"], found["steps"]) == (0, 0, 3)
    status, _, parting = against("--cfg-options", "optimizer.momentum=0.9")
    assert (status, parting["step"], parting["kind"]) == (10, 1, "hyperparameter")
    words = ("--steps", "1", "--cfg-options", "data.samples_per_gpu=4")
    status, found, parting = against(*words)
    assert (status, found["steps"], parting["kind"]) == (10, 1, "batch")
    assert parting["difference"] == "Infinity"


def recording(**changes):
    loss = (1, "loss", "loss", 0, "")
    about = {
        "schema": "devrun.recording/5", "label": "there", "epsilon": 1e-7,
        "steps": 1, "whole": 1, "places": {}, "records": [(loss, torch.ones(1))],
        "noise": [(loss, 0.0)], "astray": None,
    }  # fmt: skip
    file = io.BytesIO()
    torch.save({**about, **changes}, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04cos\nsystem\n.",
        recording(schema="devrun.recording/4"),
        recording(records=[1]),
        recording(other=1),
        recording(label=Path("of a class that may run")),
    ],
)
def test_another_file_is_no_recording(compare, tmp_path, content):
    (tmp_path / "odd").write_bytes(content)
    status, out, err = compare("first.yaml", "--against", "odd")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "is no recording of devrun compare --record" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required: CONFIG"),
        (("first.yaml",), "nothing to compare: give two CONFIGs"),
        (("first.yaml", "--devices", "cpu"), "'cpu' is not two with a comma between"),
        (("first.yaml", "--devices", "cpu,tpu"), "'tpu'"),
        (("first.yaml", "--precisions", "fp32,fp7"), "fp7"),
        (("first.yaml", "other.yaml", "--steps", "0"), "'0' is not a number of 1 or"),
        (("first.yaml", "no.yaml"), "no.yaml"),
        (("first.yaml", "--against", "a", "--record", "b"), "--record and --against"),
        (("first.yaml", "--against", "pipe"), "'pipe' cannot be read"),
        (("first.yaml", "--against", "nowhere"), "'nowhere' cannot be read"),
        (("first.yaml", "--against", "a", "--devices", "cpu,hpu"), "--devices clash"),
    ],
)
def test_bad_input_is_one_line(compare, words, said):
    status, out, err = compare(*words)
    assert (status, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1
