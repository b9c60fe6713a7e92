"""A pytest plugin for tests that need a process of their own mode.

The emulated Gaudi changes torch for the whole process, in another way in each mode.
A file `cases_*.py` in a folder whose conftest collects it as `Cases` holds tests for
such processes: its functions `test_*`, which may take `tmp_path`, are found without
importing it, and become one test for each of the file's `MODES`. All tests of a mode
run one after the other in one process, which starts for the first and calls `serve`.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import select
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest

SECONDS = 240
"""What a test may take, and the start of its process with it."""
ROOT = Path(__file__).resolve().parents[2]
SERVERS = pytest.StashKey[dict[Any, "Server"]]()


class Cases(pytest.File):
    """A file of such tests.

    `start(mode, stderr=...)` starts the process as `zygote.start` does; tests in one of
    the `slow` modes are marked so.
    """

    def __init__(self, *, start, slow=(), **options):
        super().__init__(**options)
        self.start, self.slow = start, slow

    def collect(self):
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        (modes,) = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODES"
        ]
        for mode in modes:
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    case = Case.from_parent(self, name=f"{node.name}[{mode}]")
                    case.tested, case.mode, case.line = node.name, mode, node.lineno
                    if mode in self.slow:
                        case.add_marker(pytest.mark.slow)
                    yield case


class Case(pytest.Item):
    parent: Cases
    tested: str
    mode: str
    line: int

    def runtest(self):
        servers = self.config.stash.setdefault(SERVERS, {})
        key = self.parent.start, self.mode
        if key not in servers:
            servers[key] = Server(*key)
            self.config.add_cleanup(servers[key].close)
        module = ".".join(self.path.relative_to(ROOT).with_suffix("").parts)
        failure = servers[key].run(module, self.tested)
        if failure is not None:
            raise CaseFailure(failure)

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, CaseFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, self.line - 1, self.name


class CaseFailure(Exception):
    """The traceback of the test, from its process."""


class Server:
    def __init__(self, start, mode):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = start(mode, stderr=self.errors.fileno())

    def run(self, module, function):
        """None, or the traceback of the failure."""
        process = self.process
        answer = ""
        if process.poll() is None:
            print(json.dumps([module, function]), file=process.stdin, flush=True)
            if select.select([process.stdout], [], [], SECONDS)[0]:
                answer = process.stdout.readline()
        if not answer:
            process.kill()
            self.errors.seek(0)
            return f"its process has ended, or hung: {self.errors.read()[-4000:]}"
        return json.loads(answer)

    def close(self):
        self.process.communicate(60)
        self.errors.close()


def serve(before):
    """Run the tests that stdin names, each after `before`; say what came of each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(_run(before, *json.loads(line))), file=answers, flush=True)


def _run(before, module, function):
    here = os.getcwd()
    try:
        test = getattr(importlib.import_module(module), function)
        before()
        with tempfile.TemporaryDirectory() as folder:
            test(*[Path(folder)][: test.__code__.co_argcount])
    except Exception:  # noqa: BLE001 - reported to the test
        return traceback.format_exc()
    finally:
        os.chdir(here)  # a test's folder is gone
    return None
