"""What takes packages that are not always here, in a process of its own."""

from __future__ import annotations

import os

import pytest

from tests.support.packages import vision

PROGRAM = """
import sys
from pathlib import Path
from tests.hpu import cases_fine_tuning as cases
from tests.hpu.runs import set_up
from tests.support.packages import vision

vision(sys.argv[1])
set_up("lazy")
getattr(cases, sys.argv[2])(Path(sys.argv[3]))
"""


@pytest.mark.parametrize("names", [("torchvision", "mixup"), ("peft", "lora")])
def test_it_trains_as_on_the_cpu(python, tmp_path, names):
    vision(names[0])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    done = python(["-c", PROGRAM, *names, tmp_path], paths=paths)
    assert done.returncode == 0, done.stderr[-3000:]
