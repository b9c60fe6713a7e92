"""Looking at nodes of a syntax tree: what they name, and how a message shows them."""

from __future__ import annotations

import ast
import copy
import itertools
import re

from devrun.config.template import MARKER
from devrun.text import escape

_SHOWN = 500
"""Nodes of an expression that a message repeats."""


def is_base(node: ast.expr) -> bool:
    """Whether `node` is the name `_base_`."""
    return isinstance(node, ast.Name) and node.id == "_base_"


def path_in_base(node: ast.expr) -> str:
    """The path of `_base_.a.b` in the bases; "" of anything else."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    return ".".join(reversed(path)) if is_base(node) else ""


def in_base(node: ast.expr) -> bool:
    """Whether `node` is a part of `_base_`, such as `_base_.a["b"][1]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return is_base(node)


def function_of_module(node: ast.Attribute) -> str:
    """`copy.deepcopy` of `copy.deepcopy(...)`."""
    return f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""


class _WithoutTexts(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            return ast.copy_location(ast.Constant("..."), node)
        return node


def names_bound(targets: list[ast.expr]) -> list[str]:
    """The plain names among `targets`, those inside rows included."""
    found: list[str] = []
    for target in targets:
        if isinstance(target, ast.Name):
            found.append(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            found.extend(names_bound(target.elts))
    return found


def kind_of(node: ast.AST) -> str:
    """What `node` is, for a message."""
    names = {
        "Lambda": "a lambda", "Await": "await", "Yield": "yield",
        "NamedExpr": "an assignment inside an expression", "Attribute": "an attribute",
        "Starred": "a starred value",
    }  # fmt: skip
    return names.get(type(node).__name__, f"a {type(node).__name__}")


def source_of(node: ast.AST) -> str:
    """`node` as source, its texts left out: one of them may be a secret."""
    if sum(1 for _ in itertools.islice(ast.walk(node), _SHOWN)) == _SHOWN:
        return "..."
    try:
        masked = _WithoutTexts().visit(copy.deepcopy(node))
        source = re.sub(MARKER, "{{...}}", ast.unparse(masked))
        return escape(source, 60)
    except RecursionError:
        return "..."
