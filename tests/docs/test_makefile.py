"""What `make` installs for which target, by its own account."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


@pytest.fixture
def tree(tmp_path):
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    return tmp_path


def installs(tree, *targets):
    """The extras that these targets would install, in order."""
    done = subprocess.run(
        ["make", "--dry-run", *targets], cwd=tree, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    plain = done.stdout.replace("\\\n", " ").splitlines()
    lines = [line for line in plain if "--editable" in line]
    assert all("--constraint constraints.txt" in line for line in lines)
    return [line.partition(".[")[2].partition("]")[0] for line in lines]


def test_training_installs_the_demo_and_testing_the_developers_set(tree):
    assert installs(tree, "train") == ["demo"]
    assert installs(tree, "test") == installs(tree, "lint") == ["dev"]
    assert installs(tree, "docs") == ["docs"]


def test_what_the_results_say_of_bench_is_what_it_runs():
    done = subprocess.run(
        ["make", "--dry-run", "bench"], cwd=ROOT, capture_output=True, text=True
    )
    run = re.findall(r"benchmarks/(\w+)\.py", done.stdout)
    assert all((ROOT / "benchmarks" / f"{name}.py").is_file() for name in run)
    goals = {"overhead", "startup", "emulators", "checkpoint"}
    assert {*run} == {*goals, "peers"}


def test_nothing_is_installed_twice(tree):
    (tree / ".venv" / ".demo").touch()
    assert installs(tree, "train") == []
    assert installs(tree, "test") == ["dev"]
    done = subprocess.run(
        ["make", "--dry-run", "test"], cwd=tree, capture_output=True, text=True
    )
    (touch,) = [line for line in done.stdout.splitlines() if line.startswith("touch")]
    for name in touch.split()[1:]:
        (tree / name).touch()
    assert installs(tree, "train", "test", "types") == []
