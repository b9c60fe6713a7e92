import json
import os
import subprocess
import sys

import pytest

import devrun
from devrun.cli.main import COMMANDS, main
from tests.support import zygote


def devrun_command(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "devrun", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def loaded(done):
    """Modules a `-X importtime` run imported."""
    return {
        line.rsplit("|", 1)[1].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }


def said(done):
    return [
        line for line in done.stderr.splitlines() if not line.startswith("import time:")
    ]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["train", "--help"], 0),
        (["train"], 2),
        (["train", "no_such_config.yaml"], 2),
        (["train", "x.yaml", "--devcie", "cpu"], 2),
    ],
)
def test_it_answers_without_torch(words, status, tmp_path):
    done = devrun_command(*words, cwd=tmp_path)
    assert done.returncode == status
    assert "torch" not in loaded(done)
    assert len(said(done)) == (1 if status else 0)


def test_help_names_every_command_and_exit_status(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert "75" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "train x.yaml --devcie cpu",
            "unknown flag --devcie; did you mean '--device'?",
        ),
        ("train x.yaml --dev cpu", "unknown flag --dev"),  # no abbreviations
        ("train x.yaml --lr 1", "did you mean --cfg-options optimizer.lr=...?"),
        ("train x.yaml --max-epochs 1", "--cfg-options runner.max_epochs=...?"),
        ("trian", "did you mean 'train'?"),
    ],
)
def test_what_is_unknown_is_one_line_with_the_nearest(capsys, words, said):
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert said in text


def test_a_reader_that_leaves_early_is_no_error():
    process = zygote.start(["-m", "devrun", "devices"])
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(60)
    assert (process.returncode, errors) == (141, "")


def test_devices_lists_the_cpu_and_reasons_for_the_rest(capsys):
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert any(line.startswith("cpu") and "available" in line for line in lines)
    for line in lines:
        if "not here" in line:
            assert len(line.split("not here:")[1].strip()) > 10


def test_devices_as_json_has_name_memory_and_dtypes(capsys):
    assert main(["devices", "--json"]) == 0
    rows = {row["device"]: row for row in json.loads(capsys.readouterr().out)}
    (cpu,) = rows["cpu"]["devices"]
    assert cpu["memory_bytes"] > 2**20
    assert "fp32" in cpu["dtypes"]
    assert all(row["available"] or row["reason"] for row in rows.values())


MISSPELT = """
import torch
from devrun import register_device
from devrun.devices import DeviceInfo, EagerAdapter

class Misspelt(EagerAdapter):
    name = "misspelt"
    unavailable_reason = classmethod(lambda cls: None)
    list_devices = classmethod(lambda cls: [DeviceInfo("one", None, ("fp32",))])

    def clain(self):
        return torch.device("meta")

register_device("misspelt", Misspelt)
"""


def test_conformance_says_what_holds_and_what_does_not(tmp_path):
    (tmp_path / "my_misspelt.py").write_text(MISSPELT)
    words = ["-m", "devrun", "devices", "--conformance", "misspelt"]
    few = {**os.environ, "PYTEST_ADDOPTS": "-k 'plain_loop or on_the_device'"}
    done = zygote.run([*words, "--import", "my_misspelt"], few, cwd=tmp_path)
    table = done.stdout.partition("what holds of device misspelt")[2].splitlines()
    assert done.returncode == 11 and table[-1].startswith("1 failed"), done.stdout
    assert "FAILS      an update is done on the device" in table
    assert "its claim() gave the host" in done.stdout
    assert "holds      losses and weights are those of a plain loop" in table


def test_conformance_of_no_device_is_one_line(capsys):
    assert main(["devices", "--conformance", "cpuu"]) == 2
    assert "no device 'cpuu'; did you mean 'cpu'?" in capsys.readouterr().err


def test_every_public_name_is_there():
    assert set(devrun.__all__) <= set(dir(devrun))
    for name in devrun.__all__:
        assert getattr(devrun, name) is not None


def test_a_wrong_public_name_has_a_hint():
    with pytest.raises(AttributeError, match="did you mean 'EpochBasedRunner'"):
        devrun.EpochBasedRuner  # noqa: B018
