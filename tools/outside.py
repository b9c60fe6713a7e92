#!/usr/bin/env python3
"""Other people's test suites on devrun: `make outside MMCV=DIR POPTORCH=DIR`.

Each suite is a checkout of its project, which stays as it is; what it needs besides
PyTorch and pytest must be importable (PYTHONPATH). Printed are its counts by file, and
in the end whatever failed and has no reason on the suite's page. The exit status is 1
if there was any such, else 0.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
COLUMNS = ("passed", "failed", "errors", "skipped")
TORCHVISION = """
import sys

class Finder:
    libraries = []

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            import torch
            for name in ("nms", "qnms"):  # built for CUDA, it wants them to be there
                if not hasattr(torch.ops.torchvision, name):
                    library = torch.library.Library("torchvision", "FRAGMENT")
                    library.define(name + "(Tensor a, Tensor b, float c) -> Tensor")
                    self.libraries.append(library)

sys.meta_path.insert(0, Finder())
"""
"""For every Python of a suite, its child processes too."""


@dataclass(frozen=True)
class Suite:
    """Where the tests of a project are, and what they need to run as their own do."""

    title: str
    files: tuple[str, ...]
    """Patterns below the checkout."""
    folder: str = "."
    """Where pytest starts."""
    without: tuple[str, ...] = ()
    """Names of files that need what cannot be here."""
    environment: dict[str, str] = field(default_factory=dict)
    door: tuple[str, ...] = ()
    """What runs pytest for the suite, in place of the emulators' folder on the path."""
    reasons: str = ""
    """The page that names, as `file::test`, what is known to fail and why."""


SUITES = {
    "mmcv": Suite("MMCV's IPU tests", ("tests/test_device/test_ipu/test_*.py",)),
    "runner": Suite(
        "MMCV's tests of runner, hooks, optimizers, config and registry",
        (
            "tests/test_runner/test_*.py",
            "tests/test_utils/test_config.py",
            "tests/test_utils/test_registry.py",
        ),
        door=("-m", "devrun.interop.mmcv", "--trust-config"),
        reasons="benchmarks/MMCV.md",
    ),
    "poptorch": Suite(
        "PopTorch's own tests",
        ("tests/*_test.py", "tests/test_*.py"),
        folder="tests",
        without=(
            "bert_small_and_medium_test.py",  # downloads
            "custom_ops_test.py",  # compiled libraries
            "custom_ops_attributes_test.py",
            "grouping_scatters_gathers_test.py",  # torch-scatter
            "pyg_torch_scatter_test.py",
            "io_performance_test.py",  # cycle counts
            "fine_tuning_test.py",  # models of torchvision
            "torchvision_inference_test.py",
            "test_doc_urls.py",  # links
            "torch_nn_test.py",  # a copy of torch's own tests
        ),
        # these predate weights_only
        environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
    ),
    "gaudi": Suite(
        "tests of the Gaudi bridge",
        tuple(f"tests/pytest_working/{d}test_*.py" for d in ("", "any_mode/", "lazy/")),
        folder="tests/pytest_working",
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the suites whose checkouts were given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, suite in SUITES.items():
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help=suite.title)
    parser.add_argument("--only", default="", help="files whose names have this in it")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a file")
    args = parser.parse_args(words)
    given = [name for name in SUITES if vars(args)[name] is not None]
    if not given:
        flags = ", ".join(f"--{name} DIR" for name in SUITES)
        parser.error(f"give the checkout of a suite: {flags}")
    failed = False
    _say(f"devrun {_commit(ROOT)}")
    for name in given:
        checkout = vars(args)[name].resolve()
        found = _files(SUITES[name], checkout, args.only)
        if not found:
            parser.error(f"--{name}: no test file below {checkout}")
        _say(f"\n{SUITES[name].title}, {_commit(checkout)}")
        failed |= _run(SUITES[name], checkout, found, args.timeout)
    return int(failed)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _files(suite: Suite, checkout: Path, only: str) -> list[Path]:
    files = (file for pattern in suite.files for file in checkout.glob(pattern))
    return sorted(
        f for f in set(files) if f.name not in suite.without and only in f.name
    )


def _run(suite: Suite, checkout: Path, files: list[Path], timeout: float) -> bool:
    """Print the counts of each file and of all; whether anything failed."""
    total: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for file in files:
        counts, broken = _one(suite, checkout, file, timeout)
        total += counts
        failures.update(broken)
        _say(f"  {file.name}: {_words(counts)}")
    named = _named(suite)
    new = {line: n for line, n in failures.items() if line.split()[0] not in named}
    for line, times in new.items():
        _say(f"  not passed, {times} times: {line}")
    ran = sum(total.values()) - total["skipped"]
    _say(f"  together: {total['passed']} of {ran} passed ({_words(total)})")
    if known := sum(failures.values()) - sum(new.values()):
        _say(f"  {known} of the others have their reason in {suite.reasons}")
    return bool(new)


def _named(suite: Suite) -> set[str]:
    """`file::test` of the failures that the suite's page explains."""
    if not suite.reasons:
        return set()
    text = (ROOT / suite.reasons).read_text(encoding="utf-8")
    return set(re.findall(r"`(test_\w+\.py::test_\w+)`", text))


def _one(
    suite: Suite, checkout: Path, file: Path, timeout: float
) -> tuple[Counter[str], list[str]]:
    """Counts of one file, run by a pytest of its own, and its failures."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "sitecustomize.py").write_text(TORCHVISION)
        report = Path(scratch, "report.xml")
        ours = ROOT if suite.door else ROOT / "devrun" / "emulators"
        paths = (scratch, ours, os.environ.get("PYTHONPATH"))
        environment = {
            **os.environ,
            **suite.environment,
            # some tests start `python3`
            "PATH": os.pathsep.join(
                (str(Path(sys.executable).parent), os.environ["PATH"])
            ),
            "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path),
        }
        options = ("-q", "-p", "no:cacheprovider", f"--junitxml={report}")
        process = subprocess.Popen(
            [sys.executable, *suite.door, "-m", "pytest", *options, str(file)],
            cwd=checkout / suite.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Counter(errors=1), [f"{file.name}: longer than {timeout:g} s"]
        if not report.exists():
            last = (said.strip().splitlines() or ["no output"])[-1]
            ended = f"pytest ended with status {process.returncode}: {last}"
            return Counter(errors=1), [f"{file.name}: {ended}"]
        return _counted(file, report)


def _counted(file: Path, report: Path) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    broken = []
    for case in _cases(report):
        kinds = {child.tag for child in case}
        result = next(
            (
                named
                for tag, named in (
                    ("failure", "failed"),
                    ("error", "errors"),
                    ("skipped", "skipped"),
                )
                if tag in kinds
            ),
            "passed",
        )
        counts[result] += 1
        if result in ("failed", "errors"):
            name = str(case.get("name")).partition("[")[0]
            why = (next(iter(case)).get("message") or "").strip().splitlines()
            broken.append(f"{file.name}::{name} {' '.join(why[:1])[:150]}")
    return counts, broken


def _cases(report: Path) -> Iterator[ElementTree.Element]:
    return ElementTree.parse(report).iter("testcase")


def _words(counts: Counter[str]) -> str:
    shown = [f"{counts[name]} {name}" for name in COLUMNS if counts[name]]
    return ", ".join(shown) or "no tests"


def _commit(folder: Path) -> str:
    """The commit of a checkout, with a word where it has changes."""
    from devrun.cli.record import git_revision

    found = git_revision(folder)
    return f"commit {found}" if found else str(folder)


if __name__ == "__main__":
    sys.exit(main())
