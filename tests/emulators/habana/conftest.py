"""Each mode's cases run in one process; the results are looked up test by test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import zygote

HERE = Path(__file__).parent
EMULATORS = HERE.parents[2] / "devrun" / "emulators"


def run_emulated(arguments, imports_torch=False, **environment):
    """Run Python with the emulators on the path; the finished process.

    `imports_torch`: with these settings, which its import is to see.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("PT_")}
    env |= {"PYTHONPATH": str(EMULATORS), "PYTHONDONTWRITEBYTECODE": "1"}
    if imports_torch:
        command = [sys.executable, *arguments]
        options = {"capture_output": True, "text": True, "timeout": 240}
        return subprocess.run(command, env=env | environment, **options)
    return zygote.run(arguments, env | environment, cwd=HERE, timeout=240)


@pytest.fixture(scope="session")
def emulated():
    return run_emulated


@pytest.fixture(scope="session")
def results(request):
    """mode -> {case: traceback or None}; both modes at a time, each run once."""
    files = {}
    for item in request.session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if item.path.parent == HERE and "case" in params:
            path = str(HERE / f"{params['case'].partition('.')[0]}.py")
            files.setdefault(params["mode"], {})[path] = None
    with ThreadPoolExecutor(2) as pool:
        running = {
            mode: pool.submit(
                run_emulated,
                [str(HERE / "run_cases.py"), *paths],
                PT_HPU_LAZY_MODE={"lazy": "1", "eager": "0"}[mode],
            )
            for mode, paths in files.items()
        }

        def results_of(mode):
            done = running[mode].result()
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout.splitlines()[-1])

        yield results_of
