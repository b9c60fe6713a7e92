#!/usr/bin/env python3
"""The default tests on other releases of torch, each in an environment of its own.

    torch_versions.py [--python PYTHON] [RELEASE ...] [-- OPTIONS]

Environments are made below build/versions with the versions of constraints.txt, but
for torch and for what an older one cannot work with. A row for each is printed at the
end: release, passed, skipped, failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLD = {"numpy": "1.26.4", "transformers": None}
"""Package -> its version, or None for without it."""
OTHERS: dict[str, dict[str, str | None]] = {
    "2.0.1": OLD,
    "2.4.1": OLD,
    "2.6.0": {"sympy": "1.13.1"},
    "2.9.1": {},
    "2.11.0": {"setuptools": "81.0.0"},
    "2.13.0": {},
}
"""Release of torch -> what goes with it instead of what constraints.txt says."""
EXTRAS = "demo,images,metrics,tensorboard"
TOOLS = ("hypothesis", "playwright", "pytest", "pytest-xdist")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "releases", nargs="*", metavar="RELEASE", help=", ".join(OTHERS)
    )
    parser.add_argument("--python", default=sys.executable)
    words = [*sys.argv[1:], "--"]
    own = words.index("--")
    given = parser.parse_args(words[:own])
    unknown = sorted(set(given.releases) - set(OTHERS))
    if unknown:
        parser.error(f"no release {', '.join(unknown)}; known: {', '.join(OTHERS)}")
    rows = []
    for release in given.releases or OTHERS:
        python = environment(release, given.python)
        rows.append((release, *counts(python, words[own + 1 : -1])))
    for row in [("torch", "passed", "skipped", "failed"), *rows]:
        sys.stdout.write("| " + " | ".join(map(str, row)) + " |\n")
    return int(any(row[-1] for row in rows))


def environment(release: str, python: str) -> Path:
    """The interpreter of an environment with this release of torch."""
    folder = ROOT / "build" / "versions" / f"torch-{release}"
    mine = folder / "bin" / "python"
    done = folder / ".installed"
    if done.exists():
        return mine
    changes = {"torch": release, "torchvision": None, **OTHERS[release]}
    pins = folder / "constraints.txt"
    subprocess.run([python, "-m", "venv", folder], check=True)
    asked = [str(mine), "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
    listed = subprocess.run(asked).returncode == 0  # what Python 3.9 has is not
    lines = (ROOT / "constraints.txt").read_text().splitlines() if listed else []
    kept = [line for line in lines if re.split("==", line)[0] not in changes]
    kept += [f"{name}=={number}" for name, number in changes.items() if number]
    pins.write_text("\n".join(kept) + "\n")
    extras = EXTRAS + (",onnx,transformers" if "transformers" not in changes else "")
    install = [str(mine), "-m", "pip", "install", "--quiet", "--constraint", str(pins)]
    subprocess.run([*install, "--upgrade", "pip", "setuptools"], check=True)
    own = ["--no-build-isolation", "--editable", f".[{extras}]", *TOOLS]
    subprocess.run([*install, *own], check=True, cwd=ROOT)
    done.touch()
    return mine


def counts(python: Path, options: list[str]) -> tuple[int, int, int]:
    """Tests that passed, were skipped, and failed, errors among them."""
    words = ["-m", "pytest", "-q", "-n", "4", "--dist", "loadfile", *options]
    with subprocess.Popen(
        [python, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None  # noqa: S101 - for the type checker
        last = ""
        for line in run.stdout:
            sys.stdout.write(line)
            last = line
    found = {word.rstrip("s"): int(n) for n, word in re.findall(r"(\d+) (\w+)", last)}
    failed = found.get("failed", 0) + found.get("error", 0)
    ended = run.returncode not in (0, 1)  # by other than its tests
    return found.get("passed", 0), found.get("skipped", 0), failed + ended


if __name__ == "__main__":
    sys.exit(main())
