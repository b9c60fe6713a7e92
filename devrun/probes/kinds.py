"""Whether a file is a program or a config, and for which accelerator, by its syntax."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from devrun.device_facts import FACTS

SDKS = {
    package: device
    for device, facts in FACTS.items()
    if facts.has_emulator
    for package in facts.packages
}
"""Package of a vendor's SDK -> the device that it is for."""
_DEVICE = re.compile("cuda|hpu|gpu|device|accelerat", re.IGNORECASE)
_WORDS = ("id", "attr", "arg", "value", "module")
"""Attributes of the nodes of a program that hold its names and texts."""
_LARGEST = 1 << 22
_DATA = (".yaml", ".yml", ".json", ".toml")
_SECTIONS = ("model", "data", "optimizer", "runner")
_OF_CONFIGS = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Delete)


def is_program(word: str) -> bool:
    """Whether `word` is the path of a Python program that imports torch or an SDK.

    A Python config does neither more than assign, nor, but for names of classes in the
    style of MMEngine, import. What has sections of a config is one, whatever else it
    does: it is read as data, and never run.
    """
    path = Path(word)
    tree = None if word.startswith("-") or path.suffix in _DATA else _parsed(path)
    if tree is None or not {"torch", *SDKS} & set(imported_by(tree)):
        return False
    if any(map(_is_section, tree.body)):
        return False
    return any(not _is_of_config(statement) for statement in tree.body)


def ends_flags(word: str) -> bool:
    """Whether what follows is a program's own: `word` is one, or cannot be read."""
    path = Path(word)
    return is_program(word) or (path.suffix == ".py" and _parsed(path) is None)


def devices_of(script: str) -> list[str]:
    """Those whose SDK the program imports, itself or in modules beside it."""
    names = {name for tree in _trees(script) for name in imported_by(tree)}
    return sorted({SDKS[name] for name in names if name in SDKS})


def names_device(script: str) -> bool:
    """Whether the program, or a module beside it, says anything of a device.

    What does not can put nothing on one.
    """
    nodes = (node for tree in _trees(script) for node in ast.walk(tree))
    words = (str(getattr(node, key, "")) for node in nodes for key in _WORDS)
    return any(_DEVICE.search(word) for word in words if " " not in word)


def _trees(script: str) -> Iterator[ast.Module]:
    """Of the program, and of the modules beside it that it imports."""
    waiting, seen = [Path(script)], set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        tree = _parsed(path)
        if tree is not None:
            yield tree
            beside = (path.parent / f"{name}.py" for name in imported_by(tree))
            waiting += [one for one in beside if one not in seen and one.is_file()]


def _parsed(path: Path) -> ast.Module | None:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def imported_by(tree: ast.AST) -> Iterator[str]:
    """The packages of its import statements, at any level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _is_section(statement: ast.stmt) -> bool:
    """`model = dict(...)` or `model = {...}`, and `_base_ = ...`."""
    if not isinstance(statement, ast.Assign):
        return False
    names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    value = statement.value
    made = isinstance(value, ast.Call) and getattr(value.func, "id", "") == "dict"
    return "_base_" in names or bool(
        names & set(_SECTIONS) and (made or isinstance(value, ast.Dict))
    )


def _is_of_config(statement: ast.stmt) -> bool:
    """An import, an assignment, a text; or MMEngine's `with read_base():`."""
    text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return text or isinstance(statement, (*_OF_CONFIGS, ast.With))
