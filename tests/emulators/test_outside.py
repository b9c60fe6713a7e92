"""`make outside`: another project's tests on the emulators, and their counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import poptorch, pytest, subprocess, sys

def test_is_emulated():
    assert poptorch.emulation
    code = "import poptorch.emulation"  # in processes of its own too
    subprocess.run([sys.executable, "-c", code], check=True)

@pytest.mark.parametrize("number", [1, 2])
def test_fails(number):
    assert number == 0

@pytest.mark.skip
def test_is_skipped():
    pass
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "tests" / "test_device" / "test_ipu"
    folder.mkdir(parents=True)
    (folder / "test_ipu_one.py").write_text(TESTS)
    (folder / "test_ipu_two.py").write_text("def test_passes():\n    pass\n")
    (folder / "test_ipu_three.py").write_text("import no_such_package\n")
    return tmp_path


def outside(*words):
    command = [sys.executable, str(ROOT / "tools" / "outside.py"), *map(str, words)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_counts_of_a_suite(checkout):
    found = outside("--mmcv", checkout)
    assert found.returncode == 1, found.stderr
    assert "devrun commit " in found.stdout
    assert "test_ipu_one.py: 1 passed, 2 failed, 1 skipped" in found.stdout
    assert "test_ipu_two.py: 1 passed" in found.stdout
    assert "not passed, 1 times: test_ipu_one.py::test_fails assert 1 == 0" in (
        found.stdout
    )
    assert "test_ipu_three.py: 1 errors" in found.stdout
    assert "together: 2 of 5 passed" in found.stdout
    found = outside("--mmcv", checkout, "--only", "two")
    assert found.returncode == 0
    assert "together: 1 of 1 passed" in found.stdout


def test_a_suite_must_be_named_and_be_there(tmp_path):
    found = outside()
    assert found.returncode == 2
    assert "give the checkout of a suite: --mmcv DIR" in found.stderr
    found = outside("--poptorch", tmp_path)
    assert found.returncode == 2
    assert f"no test file below {tmp_path}" in found.stderr
