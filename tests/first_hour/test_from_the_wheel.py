"""What a newcomer does first, with the built wheel and outside a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that the wheel was unpacked into."""
    pytest.importorskip("setuptools")
    place = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / "devrun"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, files.stdout.split("\0")):
        if not (ROOT / name).is_symlink() and not (ROOT / name).exists():
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        copy = ["cp", "-P", str(ROOT / name), str(source / name)]
        subprocess.run(copy, check=True)
    words = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    pip = [sys.executable, "-m", "pip", "install", *words, str(place), str(source)]
    subprocess.run(pip, check=True)
    return place


@pytest.fixture
def devrun(installed, tmp_path):
    """Run a command in an empty folder; what it printed."""

    def go(*words, cwd=tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", "devrun", *words],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return go


def test_an_experimenter_sweeps_a_shipped_config_and_compares(devrun, tmp_path):
    assert "digits/resnet8_digits.yaml" in devrun("list", "configs")
    shown = devrun("config", "digits/resnet8_digits.yaml")
    assert f"{os.sep}configs{os.sep}digits{os.sep}resnet8_digits.yaml:" in shown
    quick = ("--cfg-options", "runner.max_epochs=1", "--limit-train", "4")
    words = ("--sweep", "optimizer.lr=0.1,0.01", "--work-dir", "sweep")
    devrun("train", "digits/resnet8_digits.yaml", *words, *quick)
    table = devrun(
        *("report", "sweep/lr=0.1", "sweep/lr=0.01", "--table"),
        *("--sort", "accuracy", "--keys", "optimizer.lr"),
    )
    assert len(table.splitlines()) == 3


def test_a_researcher_starts_from_a_project(devrun, tmp_path):
    devrun("new", "mine")
    own = ("--import", "my_data.py", "--import", "my_model.py")
    out = devrun("train", "config.yaml", *own, cwd=tmp_path / "mine")
    assert "best: accuracy 0.9" in out
    assert "takes a number above 0" in devrun(
        "explain", "optimizer_config.grad_clip.max_norm"
    )


def test_a_vendor_starts_from_an_adapter(devrun, tmp_path):
    devrun("new", "board", "--like", "device")
    assert (tmp_path / "board" / "test_conformance.py").is_file()
