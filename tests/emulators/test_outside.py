"""`make outside`: a suite to run on the emulators is named and there."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def outside(*words):
    command = [sys.executable, str(ROOT / "tools" / "outside.py"), *map(str, words)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_a_suite_must_be_named_and_be_there(tmp_path):
    found = outside()
    assert found.returncode == 2
    assert "give the checkout of a suite: --mmcv DIR" in found.stderr
    found = outside("--poptorch", tmp_path)
    assert found.returncode == 2
    assert f"no test file below {tmp_path}" in found.stderr
