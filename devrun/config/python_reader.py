"""Python text to a tree, without running it: the statements of a configuration.

Each kind that is followed is one method below; a kind without a method is refused by
name. Nothing is compiled, executed or imported.
"""

from __future__ import annotations

import ast
import logging
import re
import warnings
from dataclasses import dataclass

from devrun.config import python_operations as operations
from devrun.config.limits import Budget
from devrun.config.origin import config_error, describe
from devrun.config.python_expressions import WRONG, Expressions, names_bound, source_of
from devrun.config.tree import ConfigDict
from devrun.errors import ConfigError
from devrun.place import Origin

MAX_WORDS = 60_000
_WORD = re.compile(r"\w+|[^\w\s]")
"""What a node of the syntax tree takes at least one of."""


@dataclass
class PythonFile:
    """The values of a Python configuration."""

    values: ConfigDict
    """Its variables, each with its line; without `_base_`."""
    read: set[str]
    """The variables that an expression of the file reads."""


def parse(text: str, file: str, budget: Budget) -> ast.Module:
    """The syntax tree of `text`.

    Raises:
        ConfigError: no valid Python, or too much of it.
    """
    words = len(_WORD.findall(text))
    if words > MAX_WORDS:
        reason = f"more than {MAX_WORDS} words and signs; split it with `_base_`"
        raise config_error(reason, Origin(file))
    budget.charge(words)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # '\d' in a text is its author's matter
            return ast.parse(text, filename="<config>")
    except (SyntaxError, ValueError) as error:
        reason = f"not valid Python: {getattr(error, 'msg', error)}"
        line = getattr(error, "lineno", None) or 0
        raise config_error(reason, Origin(file, line)) from None


def names_read(tree: ast.Module) -> set[str]:
    """The names an expression reads, and those a loop leaves behind."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.For):
            found.update(names_bound([node.target]))
    return found


def read_python(text: str, of: Expressions) -> PythonFile:
    """Follow the statements of `text`, whose expressions `of` evaluates.

    Raises:
        ConfigError: what is no configuration, or asks for too much work.
    """
    tree = parse(text, of.file, of.budget)
    _Statements(of).run_file(tree.body)
    for name in list(of.names):
        if str(name).startswith("__") or name == "_base_":
            del of.names[name]
    return PythonFile(of.names, names_read(tree))


class _Jump(Exception):  # noqa: N818 - control flow, not an error
    """`break` or `continue`."""


class _Statements:
    def __init__(self, of: Expressions) -> None:
        self._of = of

    def run_file(self, body: list[ast.stmt]) -> None:
        try:
            self.run(body)
        except _Jump as jump:
            reason = f"`{jump}` outside a loop"
            raise config_error(reason, Origin(self._of.file)) from None

    def run(self, body: list[ast.stmt]) -> None:
        for node in body:
            self._of.target = []
            self._of.budget.charge()
            method = getattr(self, f"_run_{type(node).__name__.lower()}", None)
            if method is None:
                word = type(node).__name__.replace("FunctionDef", "def")
                self._of.refuse(node, f"`{word.removesuffix('Def').lower()}`")
            try:
                method(node)
            except ConfigError as error:
                error.locate(self._of.place(node))
                raise
            except WRONG as error:
                self._of.fail(node, str(error) or type(error).__name__)

    def _run_assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        self._of.target = names_bound(targets)[:1]
        if node.value is not None:
            value = self._of.value(node.value)
            for target in targets:
                self._of.assign(target, value)

    _run_annassign = _run_assign

    def _run_augassign(self, node: ast.AugAssign) -> None:
        self._of.target = names_bound([node.target])[:1]
        old, given = self._of.value(node.target), self._of.value(node.value)
        if isinstance(old, list) and isinstance(node.op, ast.Add):
            # In place, as Python does: other names for the list see it too.
            old.extend(operations.items(self._of.budget, given))
            self._of.assign(node.target, self._of.budget.made(old))
        else:
            made = operations.operate(self._of.budget, node.op, old, given)
            self._of.assign(node.target, made)

    def _run_expr(self, node: ast.Expr) -> None:
        self._of.value(node.value)

    def _run_if(self, node: ast.If) -> None:
        self.run(node.body if self._of.value(node.test) else node.orelse)

    def _run_for(self, node: ast.For) -> None:
        for item in operations.items(self._of.budget, self._of.value(node.iter)):
            self._of.budget.charge()
            self._of.assign(node.target, item)
            try:
                self.run(node.body)
            except _Jump as jump:
                if str(jump) == "break":
                    return
        self.run(node.orelse)

    def _run_break(self, node: ast.Break) -> None:
        raise _Jump("break")

    def _run_continue(self, node: ast.Continue) -> None:
        raise _Jump("continue")

    def _run_pass(self, node: ast.Pass) -> None:
        pass

    def _run_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Nothing is imported: `copy` has its two functions here, and anything else is
        refused where it is used."""
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            name, known = alias.asname or alias.name, f"{module}{alias.name}"
            if known in self._of.functions:
                self._of.functions[name] = self._of.functions[known]
            elif known == "copy" == name:
                continue
            else:
                self._of.imports[name.partition(".")[0]] = node
                logging.getLogger("devrun").warning(
                    "%s: nothing is imported; a module that registers something "
                    "belongs into custom_imports",
                    self._of.origin(node),
                )

    _run_importfrom = _run_import

    def _run_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._of.value(target)
                self._of.names.pop(target.id)
                continue
            if not isinstance(target, ast.Subscript):
                self._of.refuse(target, f"`del` of `{source_of(target)}`")
            holder, key = self._of.holder(target)
            if not isinstance(holder, (dict, list)) or isinstance(key, slice):
                self._of.fail(target, f"nothing can be deleted from {describe(holder)}")
            self._of.budget.search(holder)
            holder.pop(key)
