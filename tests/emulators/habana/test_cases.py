"""The emulated Gaudi, case by case, in lazy and in eager mode."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = {
    "lazy": [
        "cases_device",
        "cases_training",
        "cases_fused",
        "cases_lazy",
        "cases_custom",
        "cases_graphs",
    ],
    "eager": [
        "cases_device",
        "cases_training",
        "cases_fused",
        "cases_eager",
        "cases_custom",
    ],
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
                    )


@pytest.mark.parametrize(("mode", "case"), list(cases()))
def test_case(mode, case, results):
    failure = results(mode)[case]
    assert failure is None, failure
