#!/usr/bin/env python3
"""The tests that need other people's packages, in environments that have them.

    interop_tests.py build/interop/mmcv1 build/interop/packages -- -x

Each environment runs all of them, and skips those whose package it lacks. It is an
error when a test fails, and when a test was skipped in every environment: then nothing
has run it. What is after `--` goes to pytest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/interop",
    "tests/mmcv_compat",
    "tests/cli/test_soft_targets.py",
    "tests/checkpoint/test_other_packages.py",
    "tests/data/test_streaming.py",
    "tests/registry",
)
"""Where tests are that some package's absence skips."""
ELSEWHERE = "`make test` runs it"
"""What the reason of a skip says of a test that needs a package to be absent."""


def main() -> int:
    words = [*sys.argv[1:], "--"]
    own = words.index("--")
    statuses, seen = [], []
    for environment in words[:own]:
        status, outcomes = run(Path(environment), words[own + 1 : -1])
        statuses.append(status)
        seen.append(outcomes)
    lost = never_run(seen)
    for name, reason in lost.items():
        say(f"skipped in every environment: {name}: {reason}")
    if not any(ran(outcome) for outcomes in seen for outcome in outcomes.values()):
        say("no test has run")
        return 1
    return int(any(statuses) or bool(lost))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(environment: Path, options: list[str]) -> tuple[int, dict[str, str | None]]:
    """pytest's exit status, and for each test why it was skipped, or None."""
    say(f"== {environment}")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        python = environment.absolute() / "bin" / "python"
        words = ["-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-r", "fE"]
        words += [f"--junitxml={report}", *TESTS, *options]
        done = subprocess.run([str(python), *words], cwd=ROOT, check=False)
        outcomes = read(report) if report.exists() else {}
    return done.returncode, outcomes


def read(report: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        skip = case.find("skipped")
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = None if skip is None else skip.get("message", "")
    return found


def ran(outcome: str | None) -> bool:
    return outcome is None


def never_run(seen: list[dict[str, str | None]]) -> dict[str, str]:
    """Tests that were skipped wherever they were, with the last reason."""
    names = dict.fromkeys(name for outcomes in seen for name in outcomes)
    lost = {}
    for name in names:
        reasons = [outcomes[name] for outcomes in seen if name in outcomes]
        if all(reason and ELSEWHERE not in reason for reason in reasons):
            lost[name] = str(reasons[-1])
    return lost


if __name__ == "__main__":
    sys.exit(main())
