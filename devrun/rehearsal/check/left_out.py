"""Leaves out statements that raise, so that what they are in can be run again."""

from __future__ import annotations

import ast
import gc
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from devrun.probes.lifetime import NeverEnds, trained
from devrun.probes.sites import is_foreign, is_library, user_line
from devrun.python38 import unparsed
from devrun.tensors import held

LOOPS = (ast.While, ast.For)
_STAY = (ast.Pass, ast.Return)
"""Statements that are needed, or nothing."""
BENT = "_has_another_shape"
"""Attribute of a tensor that comes of what raised, and was got past."""
_NUMBER = f'__import__("{__name__}", fromlist=["number"]).number()'
_STANDS_IN = f" try: {{0}}\n except NameError: {{0}} = {_NUMBER}\n"
_TURNS = 2
"""Of each loop that trains too long: what comes after it has what it sets."""
_FEW = f'__import__("itertools").islice({_TURNS})'
_TURN = f'True and __import__("{__name__}", fromlist=["turn"]).turn({{0}})'
_turns: Counter[int] = Counter()
_SHORT = "is_short"
_GUARDED = "is_guarded"
_NONE = "NoneType"
"""In what is raised where a variable, which others may share, is None."""
_LOST = re.compile(r"`np\.(\w+)` was .*?`(np\.)?(\w+)`")
"""What numpy says of a name that it has no more: that, and what to take instead."""
_BUILTINS = '__import__("builtins")'
_SHAPES = re.compile(
    r"shape|size|[Dd]imension|channels|elements|expand|broadcast|multiplied|ambiguous"
    r"|0-d|\dD|single|non-empty"
)


class Left(NamedTuple):
    """What came of a statement that raised."""

    gone: str | None
    """Where it was left out; None: it is needed."""
    cuts: bool = False
    """Whether weights may have no gradient for it."""


class Sources:
    """The files of the user, without the statements that were left out of them.

    Args:
        stands_in: whether a number is in place of what a statement would have set.
    """

    def __init__(self, stands_in: bool = True) -> None:
        self._stands_in = stands_in
        self._trees: dict[str, ast.Module] = {}
        self._lost: dict[tuple[str, int], set[str]] = {}
        """Function, or 0 for a module -> names that are not there, or not right."""
        self.returns = False
        """Whether a function gives a number in place of what it would return."""
        self._none: set[str] = set()
        """Names of what may be None."""
        self._renamed: set[str] = set()
        """Lines that ask for another key than they did."""

    def tree(self, file: str) -> ast.Module:
        """What is left of `file`."""
        if file not in self._trees:
            self._trees[file] = ast.parse(Path(file).read_bytes(), file)
        return self._trees[file]

    def leave_out(
        self, error: BaseException, follows: bool = False, kinds: Any = ast.stmt
    ) -> Left:
        """Leave out the innermost statement that led to `error`, where it raises.

        A function of a module goes on without it; a script must be run again.

        Args:
            follows: whether it raised for want of what was left out before it.
            kinds: of statements that may go.
        """
        if renewed := self.renew(error):
            return Left(renewed)
        last = [ast.Return] if kinds is ast.stmt and self._stands_in else []
        ways = product((kinds, *last), self._places(error))
        for kind, (frame, inside, line) in ways:
            if _NONE in str(error):
                self._none |= _loaded_at(inside, line)
            code = frame.f_code
            if kind is ast.Return and code.co_name == "backward":
                continue  # a gradient has the shape of what it is of
            place, gone = f"{code.co_filename}:{line}", None
            if isinstance(error, KeyError) and place not in self._renamed:
                self._renamed.add(place)
                gone = _renamed(inside, line, error, frame)
            gone = gone or _without(inside, line, kind, self._stands_in)
            if gone is None or not self._replaced(code):
                continue
            self.returns |= kind is ast.Return
            lost = self._lost.setdefault(_place(code), set())
            stored, loaded = _names(gone, ast.Store), _names(gone, ast.Load)
            lost |= stored if follows else stored - loaded
            asks = isinstance(gone, (ast.Assert, ast.Raise))
            cuts = not asks and _weighs(gone, frame)
            return Left(f"{code.co_filename}:{gone.lineno}", cuts)
        return Left(None)

    def renew(self, error: BaseException) -> str | None:
        """Have what led to `error` ask for what took the place of a name that numpy
        has no more; the line of that."""
        for frame, inside, line in self._places(error):
            if _renewed(inside, line, error) and self._replaced(frame.f_code):
                return f"{frame.f_code.co_filename}:{line}"
        return None

    def end_loop(self, error: BaseException) -> str | None:
        """Let the loops that led to `error` have a few turns, or if they had, the
        outermost none; the line of that."""
        loops: list[tuple[FrameType, Any, Any]] = []
        for frame, inside, line in reversed(list(self._places(error))):
            every = (one for one in ast.walk(inside) if isinstance(one, LOOPS))
            loops += [  # the outer ones come first
                (frame, inside, one)
                for one in every
                if one.lineno <= line <= (one.end_lineno or 0)
            ]
        if not loops:
            return None
        frame, inside, outer = loops[0]
        if all(hasattr(one, _SHORT) for _, _, one in loops):
            _without(inside, outer.lineno, LOOPS, self._stands_in)
            lost = self._lost.setdefault(_place(frame.f_code), set())
            lost |= _names(outer, ast.Store)
        for changed, _, loop in loops:
            _shorten(loop)
            self._replaced(changed.f_code)
        return f"{frame.f_code.co_filename}:{outer.lineno}"

    def follows(self, error: BaseException, spreads: bool = False) -> bool:
        """Whether it may have raised for want of what was left out before it.

        Args:
            spreads: also for want of what was made of that.
        """
        name = getattr(error, "name", None)  # of that, or of a NameError
        if isinstance(error, UnboundLocalError):  # which has none
            name = str(error).split("'")[1]
        bent = hasattr(getattr(error, "obj", None), BENT)  # of an AttributeError
        if bent or any(name in lost for lost in self._lost.values()):
            return True
        none = self._none if _NONE in str(error) else set()
        for frame, inside, line in self._places(error):
            code, read = frame.f_code, _loaded_at(inside, line)
            outer = self._lost.get((code.co_filename, 0), set()) - {*code.co_varnames}
            lost = outer | self._lost.get(_place(code), set())
            lost |= _made_of(lost, inside) if spreads else set()
            if (lost | none) & read:
                return True  # also what a call within was given
        return False

    def _places(self, error: BaseException) -> Iterator[tuple[FrameType, Any, int]]:
        """Frame, what is left of its code, and line of the user's calls."""
        for frame, line in reversed(list(_calls(error))):
            code = frame.f_code
            file = code.co_filename
            if code.co_name.startswith("<") and code.co_name != "<module>":
                continue  # a part of the statement around it
            if user_line([(file, line)]) is None or is_library(file):
                continue
            with suppress(OSError, SyntaxError):
                tree = self.tree(file)
                top = code.co_name == "<module>"
                yield frame, tree if top else _function(tree, code), line

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


def _made_of(lost: set[str], inside: Any) -> set[str]:
    """Names that the statements of `inside`, in their order, set of those `lost`."""
    lost = set(lost)
    sets = [one for one in ast.walk(inside) if isinstance(one, ast.Assign)]
    for one in sorted(sets, key=lambda one: one.lineno):
        if _names(one.value, ast.Load) & lost:
            lost |= _names(one, ast.Store)
    return lost


def _place(code: CodeType) -> tuple[str, int]:
    module = code.co_name == "<module>"
    return code.co_filename, 0 if module else code.co_firstlineno


def number() -> Tensor:
    """What is in place of the result of a statement that raised."""
    made = torch.zeros((), device="cpu")
    setattr(made, BENT, True)
    return made


def of_shape(error: BaseException) -> bool:
    """Whether it may come of a shape that something has which was got past."""
    return _SHAPES.search(str(error)) is not None


def run_script(
    script: str,
    names: dict[str, Any],
    broke: Callable[[BaseException], None],
    ended: Callable[[str | None], None],
    seconds: float,
) -> None:
    """Run each statement of `script`; `broke` is told what raises.

    A statement that raises is run again without the part of it that does; one that
    trains for `seconds` without its outermost loop, of which `ended` is told the line.

    Raises:
        SystemExit: as the script does.
    """
    sources, cut = Sources(stands_in=False), False
    body = sources.tree(script).body
    imports = (one for one in body if isinstance(one, ast.ImportFrom))
    future = [one for one in imports if one.module == "__future__"]
    for statement in list(body):
        while statement in body:
            part = ast.Module([*future, statement], [])
            ast.fix_missing_locations(part)
            try:
                with trained(seconds):
                    exec(compile(part, script, "exec", dont_inherit=True), names)  # noqa: S102
                break
            except NeverEnds as error:
                ended(left := sources.end_loop(error))
                cut = True
                if left is None:
                    break
            except Exception as error:  # noqa: BLE001 - the user's own
                follows = sources.follows(error) or (cut and _of_values(error))
                if not follows:
                    broke(error)
                if not sources.leave_out(error, follows).gone:
                    break


def _of_values(error: Exception) -> bool:
    """Whether the user's own Python raised it, as for what a model has not learnt."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    kind = isinstance(error, (ValueError, LookupError, ArithmeticError))
    return kind and not is_foreign(frame.f_code.co_filename)


def _calls(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The calls that led to `error`, or to what caused it, the outermost first."""
    first: BaseException = error
    while (cause := first.__cause__ or first.__context__) is not None:
        first = cause
    for one in (error,) if first is error else (error, first):
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


def _without(owner: Any, line: int, kinds: Any, stands_in: bool) -> Any:
    """Take the innermost statement of `kinds` at `line` out of `owner`; None: it stays.

    Of a statement around others only its own line goes, and a loop as a whole; any
    other is tried.
    """
    for field in ("body", "orelse", "finalbody", "handlers"):
        statements = getattr(owner, field, None) or []
        for index, one in enumerate(statements):
            if not one.lineno <= line <= (one.end_lineno or one.lineno):
                continue
            inner, loops = getattr(one, "body", None), isinstance(one, LOOPS)
            whole = isinstance(one, (ast.FunctionDef, ast.ClassDef, ast.Try))
            if whole or (inner and line >= inner[0].lineno):
                found = _without(one, line, kinds, stands_in)
                if found or whole or kinds is ast.stmt:
                    return found
            stays = isinstance(one, _STAY) and kinds is not ast.Return
            if stays or not isinstance(one, kinds):
                return None
            test = getattr(one, "test", None)
            if isinstance(test, ast.Constant) and not (loops and test.value):
                return None  # it was left out before, or asks nothing
            statements[index] = ast.copy_location(_less(one, stands_in), one)
            return one
    return None


def _less(one: Any, stands_in: bool) -> ast.stmt:
    """What stands for a statement that is left out."""
    if isinstance(one, (ast.If, ast.While)):
        return type(one)(ast.Constant(False), one.body, one.orelse)
    if isinstance(one, ast.For):
        return ast.For(one.target, ast.Tuple([], ast.Load()), one.body, one.orelse)
    if isinstance(one, ast.With):
        return ast.If(ast.Constant(True), one.body, [])
    return _guarded(one, stands_in)


def _shorten(loop: Any) -> None:
    """Let a loop end after a few turns."""
    if hasattr(loop, _SHORT):
        return
    setattr(loop, _SHORT, True)
    part = "iter" if isinstance(loop, ast.For) else "test"
    text = _FEW if part == "iter" else _TURN.format(id(loop))
    few: Any = ast.parse(text, mode="eval").body
    for node in ast.walk(few):
        ast.copy_location(node, loop)
    whole = few.args if part == "iter" else few.values
    whole.insert(0, getattr(loop, part))
    setattr(loop, part, few)


def turn(loop: int) -> bool:
    """Whether a `while` goes on, which ends after a few turns."""
    _turns[loop] = (_turns[loop] + 1) % (_TURNS + 1)
    return _turns[loop] > 0


def _innermost(inside: Any, line: int) -> Any:
    """The statement at `line`."""
    found = inside
    for node in ast.walk(inside):  # the outer ones first
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            found = node
    return found


def _renamed(inside: Any, line: int, error: KeyError, frame: FrameType) -> Any:
    """The statement at `line` that now asks for the key most like that of `error`."""
    statement = _innermost(inside, line)
    for node in ast.walk(statement):
        key = getattr(getattr(node, "slice", None), "value", None)
        if isinstance(node, ast.Subscript) and key in error.args:
            try:
                text = unparsed(node.value) or ""
                held = eval(text, frame.f_globals, frame.f_locals)  # noqa: S307
                names = [name for name in held if isinstance(name, str)]
                (close,) = get_close_matches(str(key), names, 1, 0)
            except Exception:  # noqa: BLE001 - the user's own
                return None
            node.slice = ast.copy_location(ast.Constant(close), node)
            return statement
    last = [one for one, _ in _calls(error)][-1].f_locals.values()
    held = next((one for one in last if isinstance(one, dict)), {})
    names = [name for name in held if isinstance(name, str)]
    for node in ast.walk(inside) if names else ():  # one of a list of names
        if isinstance(node, ast.Constant) and node.value in error.args[:1]:
            node.value = get_close_matches(str(node.value), names, 1, 0)[0]
            return statement
    return None


def _renewed(inside: Any, line: int, error: BaseException) -> bool:
    """Whether the statement at `line` asks for another name of numpy's than it did."""
    lost = _LOST.search(str(error))
    if lost is None:
        return False
    renewed = False
    for node in ast.walk(_innermost(inside, line)):
        if not (isinstance(node, ast.Attribute) and node.attr == lost[1]):
            continue
        if isinstance(node.value, ast.Name):  # `np`, whatever it is called
            node.attr, renewed = lost[3], True
            if not lost[2]:
                node.value = ast.parse(_BUILTINS, mode="eval").body
    return renewed


def _weighs(gone: ast.AST, frame: FrameType) -> bool:
    """Whether weights take part in a statement: a call, or with a gradient."""
    calls = [node.func for node in ast.walk(gone) if isinstance(node, ast.Call)]
    called = set().union(*(_names(func, ast.Load) for func in calls))
    known = {name: frame.f_locals.get(name) for name in _names(gone, ast.Load)}
    return any(
        (name in called and isinstance(value, nn.Module))
        or any(one.requires_grad for one in held(value))
        for name, value in known.items()
    )


def _guarded(one: ast.stmt, stands_in: bool) -> ast.stmt:
    """`one`, where it may raise; only once.

    Args:
        stands_in: its variables are there afterwards also where it raised.
    """
    if hasattr(one, _GUARDED):  # it raised as what is not caught there
        return ast.Pass()
    setattr(one, _GUARDED, True)
    names = {n.id for n in ast.walk(one) if isinstance(n, ast.Name)}
    stored = names & _names(one, ast.Store) if stands_in else ()
    instead = "".join(map(_STANDS_IN.format, sorted(stored)))
    if isinstance(one, ast.Return):
        instead = f" return {_NUMBER}"
    (guard,) = ast.parse(f"try: pass\nexcept Exception:\n pass\n{instead}").body
    for node in ast.walk(guard):
        ast.copy_location(node, one)
    guard.body = [one]  # type: ignore[attr-defined]
    return guard


def _loaded_at(inside: Any, line: int) -> set[str]:
    """What the innermost statement at `line` reads, not those that it is around."""
    found = _innermost(inside, line)
    parts = (getattr(found, name, None) for name in ("test", "iter"))
    heads = [part for part in parts if part is not None] or [found]
    return _names(ast.Tuple(heads, ast.Load()), ast.Load)


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
