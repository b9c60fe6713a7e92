"""Leaves out statements that raise, so that what they are in can be run again."""

from __future__ import annotations

import ast
import gc
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from devrun.probes.sites import is_library, user_line

LOOPS = (ast.While, ast.For)
_STAY = (ast.Pass, ast.Return)
"""Statements that are needed, or nothing."""


class Left(NamedTuple):
    """What came of a statement that raised."""

    gone: str | None
    """Where it was left out; None: it is needed."""
    follows: bool
    """Whether it may have raised for want of what was left out before it."""


class Sources:
    """The files of the user, without the statements that were left out of them."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module] = {}
        self._lost: dict[tuple[str, int], set[str]] = {}
        """Function -> names that are not, or not as they should be."""

    def tree(self, file: str) -> ast.Module:
        """What is left of `file`."""
        if file not in self._trees:
            self._trees[file] = ast.parse(Path(file).read_bytes(), file)
        return self._trees[file]

    def leave_out(self, error: BaseException, kinds: Any = ast.stmt) -> Left:
        """Leave out the innermost statement that led to `error` and can be spared.

        A function of a module goes on without it; a script must be run again.

        Args:
            kinds: of statements that may go.
        """
        name = getattr(error, "name", None)  # of a NameError or AttributeError
        if isinstance(error, UnboundLocalError):  # which has none
            name = str(error).split("'")[1]
        lacks = any(name in lost for lost in self._lost.values())
        for frame, line in reversed(list(_calls(error))):
            code = frame.f_code
            file = code.co_filename
            if code.co_name.startswith("<") and code.co_name != "<module>":
                continue  # a part of the statement around it
            if user_line([(file, line)]) is None or is_library(file):
                continue
            try:
                tree = self.tree(file)
                inside = tree if code.co_name == "<module>" else _function(tree, code)
                gone = _without(inside, line, kinds)
            except (OSError, SyntaxError):
                continue
            if gone is None or not self._replaced(code):
                continue
            lost = self._lost.setdefault((file, code.co_firstlineno), set())
            stored, loaded = _names(gone, ast.Store), _names(gone, ast.Load)
            follows = lacks or bool(lost & loaded)
            lost |= stored if follows else stored - loaded
            return Left(f"{file}:{gone.lineno}", follows)
        return Left(None, lacks)

    def _replaced(self, code: CodeType) -> bool:
        """Give the functions that have `code` what is left of it."""
        if code.co_name == "<module>":
            return True
        tree = ast.fix_missing_locations(self.tree(code.co_filename))
        whole = compile(tree, code.co_filename, "exec", dont_inherit=True)
        place = code.co_name, code.co_firstlineno
        same = (c for c in _codes(whole) if (c.co_name, c.co_firstlineno) == place)
        made = next(same, None)
        if made is None or made.co_freevars != code.co_freevars:
            return False
        owners = [f for f in gc.get_referrers(code) if isinstance(f, FunctionType)]
        for owner in owners:
            owner.__code__ = made
        return bool(owners)


def run_script(
    script: str, names: dict[str, Any], broke: Callable[[BaseException], None]
) -> None:
    """Run each statement of `script`; `broke` is told what raises.

    A statement that raises is run again without the part of it that does.

    Raises:
        SystemExit: as the script does.
    """
    sources = Sources()
    body = sources.tree(script).body
    imports = (one for one in body if isinstance(one, ast.ImportFrom))
    future = [one for one in imports if one.module == "__future__"]
    for statement in list(body):
        while statement in body:
            part = ast.Module([*future, statement], [])
            ast.fix_missing_locations(part)
            try:
                exec(compile(part, script, "exec", dont_inherit=True), names)  # noqa: S102
                break
            except Exception as error:  # noqa: BLE001 - the user's own
                left = sources.leave_out(error)
                if not left.follows:
                    broke(error)
                if not left.gone:
                    break


def _calls(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The calls that led to `error`, or to what caused it, the outermost first."""
    first: BaseException = error
    while (cause := first.__cause__ or first.__context__) is not None:
        first = cause
    for one in dict.fromkeys((error, first)):
        yield from traceback.walk_tb(one.__traceback__)


def _function(tree: ast.Module, code: CodeType) -> Any:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            begins = [node.lineno, *(one.lineno for one in node.decorator_list)]
            if node.name == code.co_name and code.co_firstlineno in begins:
                return node
    raise SyntaxError(f"no {code.co_name} in {code.co_filename}")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _without(owner: Any, line: int, kinds: Any) -> Any:
    """Take the innermost statement of `kinds` at `line` out of `owner`; None: it stays.

    Of a statement around others only its own line goes, and a loop as a whole.
    """
    for field in ("body", "orelse", "finalbody", "handlers"):
        statements = getattr(owner, field, None) or []
        for index, one in enumerate(statements):
            if not one.lineno <= line <= (one.end_lineno or one.lineno):
                continue
            inner, loops = getattr(one, "body", None), isinstance(one, LOOPS)
            whole = isinstance(one, (ast.FunctionDef, ast.ClassDef, ast.Try))
            if whole or (inner and line >= inner[0].lineno):
                found = _without(one, line, kinds)
                if found or whole or kinds is ast.stmt:
                    return found
            if not isinstance(one, kinds) or isinstance(one, _STAY):
                return None
            test = getattr(one, "test", None)
            if isinstance(test, ast.Constant) and not (loops and test.value):
                return None  # it was left out before, or asks nothing
            statements[index] = ast.copy_location(_less(one), one)
            return one
    return None


def _less(one: Any) -> ast.stmt:
    """What stands for a statement that is left out."""
    if isinstance(one, (ast.If, ast.While)):
        return type(one)(ast.Constant(False), one.body, one.orelse)
    if isinstance(one, ast.For):
        return ast.For(one.target, ast.Tuple([], ast.Load()), one.body, one.orelse)
    if isinstance(one, ast.With):
        return ast.If(ast.Constant(True), one.body, [])
    return ast.Pass()


def _names(statement: ast.AST, use: type) -> set[str]:
    """Variables and attributes of `self` that a statement sets, or reads."""
    found = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.alias) and use is ast.Store:
            found.add(node.asname or node.name.partition(".")[0])
        if isinstance(node, ast.Name) and isinstance(node.ctx, use):
            found.add(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, use):
            found.add(node.attr)
    return found
