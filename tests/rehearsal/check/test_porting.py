"""The port that docs/rehearsal.md tells of is what `devrun check` says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.docs.blocks import blocks
from tests.rehearsal.check.conftest import ROOT


@pytest.mark.parametrize(
    ("name", "status"),
    [("for_one_gpu", 11), pytest.param("anywhere", 0, marks=pytest.mark.slow)],
)
def test_the_page_shows_what_is_said(name, status):
    file = f"examples/porting/{name}.yaml"
    words = ["-m", "devrun", "check", file, "--import", name]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    (shown,) = blocks("docs/rehearsal.md", "text", mark=name)
    assert done.stdout.startswith(shown.text)
