"""Each mode's cases run in one process of their own: hpu changes torch for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run_python(arguments, timeout=240, paths=(), **environment):
    """Run Python on the repository; the finished process."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PT_", "DEVRUN_"))}
    env["PYTHONPATH"] = os.pathsep.join([*map(str, paths), str(ROOT)])
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=env | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture(scope="session")
def python():
    return run_python


@pytest.fixture(scope="session")
def results():
    """(mode, files) -> {case: traceback or None}; each mode is run once."""
    found = {}

    def results_of(mode, stems):
        if mode not in found:
            files = [HERE / f"{stem}.py" for stem in stems]
            found[mode] = run_python([HERE / "run_cases.py", mode, *files])
        done = found[mode]
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return results_of
