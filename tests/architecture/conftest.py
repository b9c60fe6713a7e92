"""The source of devrun as syntax trees, read once for all architecture tests."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Import:
    """One imported module or name, as a dotted path."""

    target: str
    line: int
    typing_only: bool
    in_function: bool


class Module:
    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(ROOT).as_posix()
        self.is_package = path.name == "__init__.py"
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text, filename=str(path))

    @property
    def room(self) -> str:
        """`hooks` for devrun/hooks/lr.py, `errors` for devrun/errors.py."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""

    def at(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    @cached_property
    def imports(self) -> list[Import]:
        return list(_imports(self.tree, typing_only=False, in_function=False))


def _imports(node, *, typing_only, in_function):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, typing_only, in_function)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            for alias in child.names:
                target = f"{base}.{alias.name}"
                yield Import(target, child.lineno, typing_only, in_function)
        else:
            guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(
                child.test
            )
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _imports(
                child,
                typing_only=typing_only or guarded,
                in_function=in_function or function,
            )


def _read(*folders):
    return [
        Module(path)
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


@pytest.fixture(scope="session")
def devrun_modules():
    return _read("devrun")


@pytest.fixture(scope="session")
def modules():
    return _read("devrun", "tools")


@pytest.fixture(scope="session")
def root():
    return ROOT
