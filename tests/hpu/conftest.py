"""The tests of a mode run in a process of its own: hpu changes torch for it."""

import os
from pathlib import Path

import pytest

from tests.support import zygote
from tests.support.modes import Cases

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def environment(*paths):
    """That of the tests without settings of a device, with `paths` to import from."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PT_", "DEVRUN_"))}
    return env | {"PYTHONPATH": os.pathsep.join([*map(str, paths), str(ROOT)])}


def run_python(arguments, timeout=240, paths=(), **variables):
    return zygote.run(arguments, environment(*paths) | variables, ROOT, timeout)


@pytest.fixture(scope="session")
def python():
    return run_python


def start_mode(mode, **streams):
    return zygote.start([HERE / "serve.py", mode], environment(), ROOT, **streams)


def pytest_collect_file(file_path, parent):
    if file_path.name.startswith("cases_"):
        return Cases.from_parent(
            parent, path=file_path, start=start_mode, slow=("compile",)
        )
    return None
