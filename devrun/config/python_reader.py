"""Python text to a tree, without running it: the statements of a configuration.

Assignments, `for`, `if`, `del` and calls that change a list or a dict are followed;
`import`, `def`, `class`, `while`, `with` and the rest are refused by name.
"""

from __future__ import annotations

import ast
import logging
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from devrun.config import python_operations as operations
from devrun.config.limits import Budget
from devrun.config.origin import config_error, describe
from devrun.config.python_expressions import (
    WRONG,
    Expressions,
    holder_of,
    names_bound,
)
from devrun.config.tree import ConfigDict, place
from devrun.errors import ConfigError
from devrun.place import Origin

_REFUSED = {
    "FunctionDef": "`def`", "AsyncFunctionDef": "`async def`",
    "ClassDef": "`class`", "While": "`while`",
    "With": "`with`", "Try": "`try`", "TryStar": "`try`", "Raise": "`raise`",
    "Assert": "`assert`", "Global": "`global`", "Match": "`match`",
}  # fmt: skip


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
    try:
        budget.charge(words)
    except ValueError as error:
        raise config_error(str(error), Origin(file)) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # '\d' in a text is its author's matter
            tree = ast.parse(text, filename="<config>")
    except SyntaxError as error:
        reason = f"not valid Python: {error.msg}"
        raise config_error(reason, Origin(file, error.lineno or 0)) from None
    except (MemoryError, RecursionError):
        raise config_error("nested too deeply to be read", Origin(file)) from None
    except ValueError as error:
        raise config_error(f"not valid Python: {error}", Origin(file)) from None
    tree.body = [node for node in tree.body if not _is_for_a_script(node)]
    return tree


def _is_for_a_script(node: ast.stmt) -> bool:
    """`if __name__ == "__main__":`, which a configuration that is read never is."""
    return (
        isinstance(node, ast.If)
        and not node.orelse
        and (ast.unparse(node.test) == "__name__ == '__main__'")
    )


def names_read(tree: ast.Module) -> set[str]:
    """The names an expression reads, and those a loop leaves behind."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.For):
            found.update(names_bound([node.target]))
    return found


def read_python(
    text: str,
    file: str,
    budget: Budget,
    fill: Callable[[str], Any],
    base: Callable[[str, Origin], Any],
    load_bases: Callable[[Any, Origin], None],
) -> PythonFile:
    """Follow the statements of `text`.

    `load_bases` is given the value of `_base_` before anything else is read, so that
    `fill` and `base` know what `{{ _base_.a }}` means.

    Raises:
        ConfigError: what is no configuration, or asks for too much work.
    """
    tree = parse(text, file, budget)
    read = names_read(tree)
    reader = _Statements(Expressions(file, budget, fill, base), read)
    reader.bases(tree, load_bases)
    reader.run_file(tree.body)
    return PythonFile(reader.result(), read)


class _Jump(Exception):  # noqa: N818 - control flow, not an error
    """`break` or `continue`."""


class _Statements:
    def __init__(self, expressions: Expressions, read: set[str]) -> None:
        self._of = expressions
        self._read = read
        self._lines: dict[str, Origin] = {}
        self._base_line: Origin | None = None

    def bases(
        self, tree: ast.Module, load_bases: Callable[[Any, Origin], None]
    ) -> None:
        self._of.target = ["_base_"]
        for node in tree.body:
            if isinstance(node, ast.Assign) and names_bound(node.targets) == ["_base_"]:
                self._base_line = self._of.origin(node)
                load_bases(self._of.value(node.value), self._base_line)
                break
        self._of.target = []

    def run_file(self, body: list[ast.stmt]) -> None:
        try:
            self.run(body)
        except _Jump as jump:
            raise config_error(
                f"`{jump.args[0]}` outside a loop", Origin(self._of.file)
            ) from None

    def result(self) -> ConfigDict:
        tree = ConfigDict()
        for name, value in self._of.names.items():
            if not name.startswith("__") and name != "_base_":
                place(tree, name, value, self._lines.get(name))
        return tree

    def run(self, body: list[ast.stmt]) -> None:
        for node in body:
            self._of.budget.charge(1)
            method = getattr(self, "_run_" + type(node).__name__.lower(), None)
            if method is None:
                kind = type(node).__name__
                self._of.refuse(node, _REFUSED.get(kind, f"the statement {kind}"))
            try:
                method(node)
            except ConfigError:
                raise
            except WRONG as error:
                self._of.fail(node, str(error) or type(error).__name__)
        self._of.target = []

    def _run_assign(self, node: ast.Assign) -> None:
        self._of.target = names_bound(node.targets)[:1]
        value = self._of.value(node.value)
        for target in node.targets:
            self._bind(target, value)

    def _run_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._of.target = names_bound([node.target])[:1]
            self._bind(node.target, self._of.value(node.value))

    def _run_augassign(self, node: ast.AugAssign) -> None:
        self._of.target = names_bound([node.target])[:1]
        old = self._of.value(node.target)
        operator = type(node.op).__name__
        given = self._of.value(node.value)
        if isinstance(old, list) and operator == "Add":
            # In place, as Python does: other names for the list see it too.
            old.extend(operations.items(self._of.budget, given))
            self._of.budget.made(old)
            made: Any = old
        else:
            made = operations.binary(self._of.budget, operator, old, given)
        self._bind(node.target, made)

    def _bind(self, target: ast.expr, value: Any) -> None:
        self._of.assign(target, value)
        for name in names_bound([target]):
            self._lines[name] = self._of.origin(target)
            if name == "_base_" and self._lines[name] != self._base_line:
                self._of.fail(target, "assign it once, on a line of its own")

    def _run_expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Constant):
            return  # a docstring or a bare value
        if not isinstance(call, ast.Call):
            self._of.value(call)
            return
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr == "update":
            owner = function.value
            if isinstance(owner, ast.Call) and names_bound([owner.func]) == ["globals"]:
                self._run_globals(call)
                return
        if names_bound([function]) == ["print"]:
            self._of.refuse(node, "the call print(...)")
        self._of.value(call)

    def _run_globals(self, call: ast.Call) -> None:
        """`globals().update({...})`: top-level keys that are no Python names."""
        for argument in call.args:
            given = self._of.value(argument)
            if not isinstance(given, ConfigDict) or not all(
                isinstance(k, str) for k in operations.items(self._of.budget, given)
            ):
                self._of.fail(call, "a dict with text as keys is expected here")
            self._of.names.update(given)
            self._lines.update(dict.fromkeys(given, self._of.origin(call)))
            self._lines.update(given._meta_.origins)

    def _run_if(self, node: ast.If) -> None:
        self.run(node.body if self._of.value(node.test) else node.orelse)

    def _run_for(self, node: ast.For) -> None:
        for item in operations.items(self._of.budget, self._of.value(node.iter)):
            self._of.budget.charge(1)
            self._bind(node.target, item)
            try:
                self.run(node.body)
            except _Jump as jump:
                if jump.args[0] == "break":
                    return
        self.run(node.orelse)

    def _run_break(self, node: ast.Break) -> None:
        raise _Jump("break")

    def _run_continue(self, node: ast.Continue) -> None:
        raise _Jump("continue")

    def _run_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Nothing is imported: `copy` has its two functions here, and what nothing in
        the file uses is passed over."""
        module = node.module if isinstance(node, ast.ImportFrom) else None
        for alias in node.names:
            name = alias.asname or alias.name
            known = operations.module_functions(self._of.budget, module or alias.name)
            if module is None and known:
                self._of.functions |= {f"{name}.{k}": known[k] for k in known}
                continue
            if alias.name in known:
                self._of.functions[name] = known[alias.name]
                continue
            if name.partition(".")[0] in (*self._read, "*"):
                self._of.refuse(node, "`import`")
            logging.getLogger("devrun").warning(
                "%s: an import that the file does not use is passed over; a module "
                "that registers something belongs into custom_imports",
                self._of.origin(node),
            )

    _run_importfrom = _run_import

    def _run_pass(self, node: ast.Pass) -> None:
        pass

    def _run_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                if target.id not in self._of.names:
                    self._of.fail(
                        target, f"the name {target.id!r} is not defined above"
                    )
                del self._of.names[target.id]
            elif isinstance(target, ast.Subscript):
                self._delete_item(target)
            else:
                self._of.refuse(target, "`del` of an attribute")

    def _delete_item(self, target: ast.Subscript) -> None:
        holder, key = holder_of(self._of, target)
        if isinstance(holder, dict) and key not in holder:
            self._of.fail(target, f"no key {describe(key)}")
        if not isinstance(holder, (dict, list)) or isinstance(key, slice):
            self._of.fail(target, f"nothing can be deleted from {describe(holder)}")
        self._of.budget.charge(len(holder) >> 9)
        holder.pop(key)
