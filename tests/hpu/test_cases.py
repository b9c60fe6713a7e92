"""The adapter, case by case, in each mode on the emulator."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = {
    "lazy": ["cases_training", "cases_report", "cases_graphs", "cases_host"],
    "eager": ["cases_training", "cases_report", "cases_host"],
    "compile": ["cases_training", "cases_report", "cases_host"],
}


def cases():
    for mode, stems in FILES.items():
        for stem in stems:
            tree = ast.parse((HERE / f"{stem}.py").read_text(encoding="utf-8"))
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("case_"):
                    yield pytest.param(
                        mode,
                        f"{stem}.{node.name}",
                        id=f"{mode}-{node.name.removeprefix('case_')}",
                        marks=[pytest.mark.slow] if mode == "compile" else [],
                    )


@pytest.mark.parametrize(("mode", "case"), list(cases()))
def test_case(mode, case, results):
    failure = results(mode)[case]
    assert failure is None, failure
