"""Each mode's cases run in one process; the results are looked up test by test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EMULATORS = HERE.parents[2] / "devrun" / "emulators"


def run_emulated(arguments, **environment):
    """Run Python with the emulators on the path; the finished process."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PT_")}
    env |= {"PYTHONPATH": str(EMULATORS), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=env | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="session")
def emulated():
    return run_emulated


@pytest.fixture(scope="session")
def results():
    """(mode, files) -> {case: traceback or None}; each mode is run once."""
    found = {}

    def results_of(mode, stems):
        if mode not in found:
            files = [str(HERE / f"{stem}.py") for stem in stems]
            lazy = {"lazy": "1", "eager": "0"}[mode]
            done = run_emulated(
                [str(HERE / "run_cases.py"), *files], PT_HPU_LAZY_MODE=lazy
            )
            found[mode] = done
        done = found[mode]
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return results_of
