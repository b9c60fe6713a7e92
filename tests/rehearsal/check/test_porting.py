"""The port that docs/rehearsal.md tells of is what `devrun check` says."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.docs.blocks import blocks
from tests.rehearsal.check.conftest import ROOT


def checked(name, *words):
    command = ["-m", "devrun", "check", f"examples/porting/{name}.yaml"]
    return subprocess.run(
        [sys.executable, *command, "--import", name, *words],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip


def test_the_page_shows_what_is_said():
    done = checked("for_one_gpu")
    assert done.returncode == 11, done.stderr
    (shown,) = blocks("docs/rehearsal.md", "text", mark="for_one_gpu")
    assert done.stdout.startswith(shown.text)
