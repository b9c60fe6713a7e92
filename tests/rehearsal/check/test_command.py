"""`devrun check` as its user types it: processes, words, JSON, statuses, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from devrun.cli.main import main
from tests.cli.conftest import CONFIG
from tests.support import zygote

MODULE = """
import ctypes
import os
import time

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Odd(nn.Module):
    def __init__(self, plant=""):
        super().__init__()
        self.fc, self.plant = nn.Linear(16, 4), plant

    def forward(self, x):
        if self.plant == "crash":
            ctypes.string_at(0)  # crash
        if self.plant == "hang":
            open(f"hangs.{os.getpid()}", "w").close()
            time.sleep(600)  # hang
        if self.plant == "waits":
            self.fc(x.flatten(1)).sum().item()
        return self.fc(x.flatten(1))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here/odd_models.py").write_text(MODULE)
    (tmp_path / "here/c.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path / "here"


def started(folder, *words):
    arguments = [sys.executable, "-m", "devrun", "check", *map(str, words)]
    scratch = str(folder.parent / "scratch")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": scratch}
    return arguments, env


def check(folder, *words, timeout=300):
    arguments, env = started(folder, *words)
    return subprocess.run(
        arguments, cwd=folder, env=env, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


def left(folder):
    """What a check has left of its own in the folder of temporary files."""
    return [p.name for p in (folder.parent / "scratch").iterdir() if "devrun" in p.name]


def planted(name):
    return ["--cfg-options", f"model={{_delete_: true, type: Odd, plant: {name}}}"]


def eventually(true, seconds=180):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_every_shipped_device_is_a_row_and_json_is_the_same(folder):
    before = sorted(folder.rglob("*"))
    done = check(folder, "c.yaml", "--json", "--steps", 2)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "devrun.check/1"
    rows = {row["device"]: row for row in found["devices"]}
    assert list(rows) == ["cpu", "cuda", "hpu", "ipu"]
    assert rows["hpu"]["modes"] == ["lazy", "compile"]
    assert [row["emulated"] for row in rows.values()] == [False, False, True, True]
    for row in rows.values():
        # What samples cost beside an update is measured, on a machine with other work.
        assert row["findings"] == []
        assert row["ended"] == {}
    assert rows["hpu"]["facts"]["lazy"]["launches an update"] > 0
    assert sorted(folder.rglob("*")) == before


def test_a_crash_of_native_code_is_a_finding_with_its_line_and_stack(folder):
    options = [
        "--cfg-options",
        "model={'_delete_': True, 'type': 'Odd', 'plant': 'crash'}",
    ]
    words = ["--import", "odd_models", "--device", "cpu", "--json", *options]
    done = check(folder, "c.yaml", *words)
    assert done.returncode == 11, done.stderr
    (row,) = json.loads(done.stdout)["devices"]
    (finding,) = row["findings"]
    number = MODULE.splitlines().index("            ctypes.string_at(0)  # crash") + 1
    assert finding["site"] == f"{folder / 'odd_models.py'}:{number}"
    assert (finding["kind"], finding["what"]) == ("crash", "string_at")
    assert "SIGSEGV" in finding["why"]
    assert any("forward" in call for call in finding["stack"])
    assert row["ended"] == {"": "the training"}
    assert left(folder) == []


def test_a_hang_is_ended_and_has_its_line(folder):
    options = [
        "--cfg-options",
        "model={'_delete_': True, 'type': 'Odd', 'plant': 'hang'}",
    ]
    words = ["--import", "odd_models", "--device", "cpu", "--timeout", 60, *options]
    done = check(folder, "c.yaml", *words)
    assert done.returncode == 11, done.stderr
    number = MODULE.splitlines().index("            time.sleep(600)  # hang") + 1
    assert "breaks: hangs" in done.stdout
    assert f"    at odd_models.py:{number}\n" in done.stdout
    assert left(folder) == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no -P")
def test_a_module_beside_the_config_does_not_run(folder):
    for name in ("multiprocessing", "random"):
        (folder / f"{name}.py").write_text("open('ran', 'w').close()")
    devrun = "from devrun.cli.main import main; exit(main())"
    program = f"import sys; sys.path[:] = {sys.path!r}; {devrun}"
    arguments, env = started(folder, "c.yaml", "--device", "cpu", "--json")
    arguments[1:3] = ["-c", program]  # as an installed `devrun` starts
    done = subprocess.run(
        arguments, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_check_that_is_ended_leaves_no_process_and_no_file(folder, number):
    options = [
        "--cfg-options",
        "model={'_delete_': True, 'type': 'Odd', 'plant': 'hang'}",
    ]
    words = ["c.yaml", "--import", "odd_models", "--device", "cpu", *options]
    arguments, env = started(folder, *words)
    whole = subprocess.Popen(
        arguments, cwd=folder, env=env, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    eventually(lambda: list(folder.glob("hangs.*")))
    whole.send_signal(number)  # to it alone, not to its children
    said, _ = whole.communicate(timeout=60)
    if number == signal.SIGINT:
        assert (whole.returncode, said) == (130, "devrun: interrupted: by Ctrl-C\n")
    (child,) = (path.suffix[1:] for path in folder.glob("hangs.*"))
    eventually(lambda: not os.path.exists(f"/proc/{child}/exe"))
    eventually(lambda: left(folder) == [])


@pytest.mark.parametrize(
    ("least", "status"),
    [pytest.param("breaks", 0, marks=pytest.mark.slow), ("slow", 11)],
)
def test_what_fails_is_the_users_choice(folder, least, status):
    options = [
        "--cfg-options",
        "model={'_delete_': True, 'type': 'Odd', 'plant': 'waits'}",
    ]
    words = ["--import", "odd_models", "--device", "hpu", "--fail-on", least]
    done = check(folder, "c.yaml", *words, *options)
    assert done.returncode == status, done.stderr
    assert "slow: host waits: item, 1 an update" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["c.yaml", "--device", "tpu"], 2, "no device 'tpu'"),
        (["c.yaml", "--device", "mps"], 9, "'mps' is neither here nor emulated"),
        (["c.yaml", "--steps", "0"], 2, "--steps must be 1 or more, got 0"),
        (["c.yaml", "--samples", "-1"], 2, "--samples must be 1 or more, got -1"),
        (["c.yaml", "--memory", "much"], 2, "'much' is not a size such as 24GiB"),
        (["nowhere.yaml"], 2, "nowhere.yaml"),
        (
            ["c.yaml", "--device", "cpu", "--cfg-options", "model.type=ResNat"],
            2,
            "command line: model.type: 'ResNat' is not in the model registry",
        ),
    ],
)
def test_bad_input_is_one_line(folder, words, status, said):
    arguments = ["-m", "devrun", "check", *words]
    done = zygote.run(arguments, cwd=folder, timeout=120)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_an_option_of_the_device_is_found_at_its_line(folder):
    text = yaml.safe_dump({**CONFIG, "device": {"type": "hpu", "turbo": True}})
    (folder / "c.yaml").write_text(text)
    done = check(folder, "c.yaml", "--device", "hpu", "--json")
    assert done.returncode == 11, done.stderr
    (row,) = json.loads(done.stdout)["devices"]
    number = text.splitlines().index("device:") + 1
    sites = {one["what"]: one["site"] for one in row["findings"]}
    assert sites == {"device.turbo": f"c.yaml:{number}"}


def test_a_torch_that_is_too_old_is_refused_by_name(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("devrun.torch_features.VERSION", "2.0.1")
    assert main(["check", "c.yaml"]) == 2
    assert "devrun check needs torch 2.4 or later" in capsys.readouterr().err
