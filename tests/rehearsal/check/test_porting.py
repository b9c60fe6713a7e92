"""What docs/porting.md tells of two ports is what is said, and what is computed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.docs.blocks import blocks
from tests.first_hour import roles
from tests.rehearsal.check.conftest import ROOT
from tests.support import zygote

PORTING = ROOT / "examples" / "porting"


def checked(name, *words):
    command = ["-m", "devrun", "check", f"examples/porting/{name}.yaml"]
    return subprocess.run(
        [sys.executable, *command, "--import", name, *words],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip


def test_the_page_shows_what_is_said():
    done = checked("for_one_gpu")
    assert done.returncode == 11, done.stderr
    (shown,) = blocks("docs/porting.md", "text", mark="for_one_gpu")
    assert done.stdout.startswith(shown.text)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    return str(roles.cifar(tmp_path_factory.mktemp("data") / "cifar"))


def ran(*words, cwd):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = zygote.run([str(word) for word in words], env, cwd=cwd, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def of_script(cifar, tmp_path_factory):
    """The losses of the script, in the order of the data."""
    place = tmp_path_factory.mktemp("script")
    text = (PORTING / "cifar_script.py").read_text()
    assert "if step % 50 == 0:" in text
    own = place / "script.py"
    own.write_text(text.replace("if step % 50 == 0:", "if step % 1 == 0:"))
    words = ("--epochs", 1, "--batch-size", 16, "--warmup", 3, "--in-order")
    out = ran(own, cifar, *words, cwd=place)
    return [float(found) for found in re.findall(r"loss ([\d.]+)", out)]


def test_check_names_the_lines_of_a_script_that_stop_on_a_gaudi(cifar, tmp_path):
    script = PORTING / "cifar_script.py"
    words = (
        "check",
        "--device",
        "hpu",
        script,
        cifar,
        "--epochs",
        1,
        "--batch-size",
        16,
    )
    done = subprocess.run(
        [sys.executable, "-m", "devrun", *map(str, words)],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    lines = script.read_text().splitlines()
    for kind, line in (
        ("hard-wired cuda", 'device = "cuda" if torch.cuda.is_available() else "cpu"'),
        ("not imported", "import torch"),
        ("no step mark", "optimizer.step()"),
    ):
        at = next(n for n, text in enumerate(lines, 1) if text.strip() == line)
        place = rf"{kind}: .*\n    at \S*cifar_script.py:{at}\n"
        assert re.search(place, done.stdout), done.stdout


@pytest.mark.parametrize("device", ["cpu", "hpu", "ipu"])
def test_the_port_of_a_script_has_its_losses(device, of_script, cifar, tmp_path):
    changes = {
        "data.samples_per_gpu": 16,
        "data.train.data_prefix": cifar,
        "data.val.data_prefix": cifar,
        "runner.max_epochs": 1,
        "lr_config.warmup_iters": 3,
        "log_config.interval": 1,
    }
    ran(
        *("-m", "devrun", "train", PORTING / "cifar_vit.yaml", "--import", "cifar_vit"),
        *("--device", device, *["--emulate"] * (device != "cpu"), "--overfit", 5),
        *("--work-dir", "out", "--cfg-options"),
        *(f"{key}={value}" for key, value in changes.items()),
        cwd=tmp_path,
    )
    (log,) = (tmp_path / "out").glob("*.log.json")
    records = map(json.loads, log.read_text().splitlines())
    losses = [one["loss"] for one in records if one.get("mode") == "train"]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    # the emulators compute some operators in another order, or round as the device does
    tolerance = 1e-4 if device == "cpu" else 1e-3
    assert losses == pytest.approx(of_script, abs=tolerance)
