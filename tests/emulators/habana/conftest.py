"""Programs on the emulators; the tests of a mode run in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import zygote
from tests.support.modes import Cases

HERE = Path(__file__).parent
EMULATORS = HERE.parents[2] / "devrun" / "emulators"


def environment():
    """That of the tests without settings of the device, with the emulators."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PT_")}
    return env | {"PYTHONPATH": str(EMULATORS), "PYTHONDONTWRITEBYTECODE": "1"}


def run_emulated(arguments, imports_torch=False, **variables):
    """Run Python with the emulators on the path; the finished process.

    `imports_torch`: with these settings, which its import is to see.
    """
    env = environment() | variables
    if imports_torch:
        command = [sys.executable, *arguments]
        options = {"capture_output": True, "text": True, "timeout": 240}
        return subprocess.run(command, env=env, **options)
    return zygote.run(arguments, env, HERE, 240)


@pytest.fixture(scope="session")
def emulated():
    return run_emulated


def start_mode(mode, **streams):
    env = environment() | {"PT_HPU_LAZY_MODE": {"lazy": "1", "eager": "0"}[mode]}
    return zygote.start([HERE / "serve.py"], env, HERE, **streams)


def pytest_collect_file(file_path, parent):
    if file_path.name.startswith("cases_"):
        return Cases.from_parent(parent, path=file_path, start=start_mode)
    return None
