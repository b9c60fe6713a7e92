"""Each mode's cases run in one process of their own: hpu changes torch for it."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import zygote

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run_python(arguments, timeout=240, paths=(), **environment):
    """Run Python on the repository; the finished process."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PT_", "DEVRUN_"))}
    env["PYTHONPATH"] = os.pathsep.join([*map(str, paths), str(ROOT)])
    return zygote.run(arguments, env | environment, cwd=ROOT, timeout=timeout)


@pytest.fixture(scope="session")
def python():
    return run_python


@pytest.fixture(scope="session")
def results(request):
    """mode -> {case: traceback or None}; two modes at a time, each run once."""
    files = {}
    for item in request.session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if item.path.parent == HERE and "case" in params:
            path = HERE / f"{params['case'].partition('.')[0]}.py"
            files.setdefault(params["mode"], {})[path] = None
    with ThreadPoolExecutor(2) as pool:
        running = {
            mode: pool.submit(run_python, [HERE / "run_cases.py", mode, *paths])
            for mode, paths in files.items()
        }

        def results_of(mode):
            done = running[mode].result()
            assert done.returncode == 0, done.stderr[-4000:]
            return json.loads(done.stdout.splitlines()[-1])

        yield results_of
