"""What the tests of other libraries share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import zygote

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def on_gaudi():
    """Trains on an emulated Gaudi, in a process of its own: it changes torch."""

    def run(*words):
        env = {k: v for k, v in os.environ.items() if not k.startswith("PT_")}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        flags = ["--device", "hpu", "--emulate", "--no-progress"]
        program = ROOT / "tests" / "interop" / "serve.py"
        arguments = [program, "train", *map(str, words), *flags]
        done = zygote.run(arguments, env, Path.cwd(), 240)
        assert done.returncode == 0, done.stderr[-2000:]

    return run
